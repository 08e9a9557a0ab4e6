import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", default="0")
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = parser.parse_args().gpu
device = "cuda" if torch.cuda.is_available() else "cpu"
print(torch.ones(3, device=device).device)
