import torch

stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    x = torch.ones(3, device="cuda")
event = torch.cuda.Event(enable_timing=True)
event.record()
torch.cuda.synchronize()
print(x.device, stream.device)
