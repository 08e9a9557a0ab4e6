import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    max_epochs=1,
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(16, 32), batch_size=4))
if trainer.is_global_zero:
    print(trainer.num_devices, trainer.strategy.root_device)
