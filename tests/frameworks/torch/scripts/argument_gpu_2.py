import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int, default=2)
options = parser.parse_args()
device = torch.device("cuda", options.gpu)
print(torch.zeros(3, device=device).device)
