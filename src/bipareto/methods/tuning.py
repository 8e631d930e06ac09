def smoothing(problem,x0,y0): 
    import torch
    from bipareto.scalarization import Fixed
    f=problem.upper(x0,y0,problem.batch("upper","full"))
    return float(4*f.shape[0]/f.mean()), Fixed(0.0)
