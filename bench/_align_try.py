import torch
def shifted(t, off):
    b=torch.empty(t.numel()*t.element_size()+128,dtype=torch.uint8)
    s=b[off:off+t.numel()*t.element_size()].view(t.dtype).view(t.shape); s.copy_(t); return s
torch.manual_seed(0)
import sys
for dt in (torch.float32,torch.float64):
  for shape in ((4,8,5),(16,33,17),(32,64,128),(9,7,3),(1,1000,1)):
    n,k,m=shape
    x=torch.randn(n,k,dtype=dt); w=torch.randn(m,k,dtype=dt)
    base=torch.nn.functional.linear(x,w)
    diffs=[]
    for off in range(0,64,x.element_size()):
        a=torch.nn.functional.linear(shifted(x,off),w); b=torch.nn.functional.linear(x,shifted(w,off))
        diffs.append((int(not torch.equal(a,base)),int(not torch.equal(b,base))))
    v=torch.randn(1000,dtype=dt)
    d=[int(not torch.equal(shifted(v,o).dot(v),v.dot(v))) for o in range(0,64,v.element_size())]
    s=[int(not torch.equal(shifted(v,o).sum(),v.sum())) for o in range(0,64,v.element_size())]
    nn=[int(not torch.equal(shifted(v,o).norm(),v.norm())) for o in range(0,64,v.element_size())]
    conv=0
    print(dt,shape,"lin",sum(a for a,_ in diffs),sum(b for _,b in diffs),"dot",sum(d),"sum",sum(s),"norm",sum(nn))
