import warnings

import torch

warnings.simplefilter("ignore")
torch.set_default_tensor_type(torch.cuda.FloatTensor)
print(torch.zeros(3).device)
