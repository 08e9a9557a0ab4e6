import tempfile

import torch
from transformers import BertConfig, BertModel

config = BertConfig(hidden_size=64, num_hidden_layers=8, num_attention_heads=4, intermediate_size=128, vocab_size=1000)
with tempfile.TemporaryDirectory() as folder:
    BertModel(config).save_pretrained(folder)
    model = BertModel.from_pretrained(folder, device_map="auto")
print(tuple(model(torch.ones(1, 8, dtype=torch.long).to(model.device)).last_hidden_state.shape))
print("on several" if len({weights.device for weights in model.parameters()}) > 1 else "on one")
