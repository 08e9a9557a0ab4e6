"""An ordinary PyTorch script: it uses device "cuda", sets no memory option and contains no code for autogpu."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
images = torch.rand(2048, 784, device=device)
labels = torch.randint(0, 10, (2048,), device=device)

model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())
loss_of = torch.nn.CrossEntropyLoss()

for epoch in range(20):
    for begin in range(0, len(images), 64):
        optimizer.zero_grad()
        loss = loss_of(model(images[begin : begin + 64]), labels[begin : begin + 64])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
