import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(32, 2)
batches = torch.utils.data.DataLoader(torch.randn(16, 32), batch_size=4)
model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
for batch in batches:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
print(accelerator.num_processes, accelerator.device)
