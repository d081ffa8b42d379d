"""Models as a user writes them, good and bad."""

import torch
from torch import nn

calls = 0
shared = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Net(nn.Module):
    """A layer, and what a test adds to it."""

    def __init__(self, feature_shape, num_classes, middle=None):
        super().__init__()
        self.flatten = nn.Flatten()
        self.middle = nn.Identity() if middle is None else middle
        self.output = nn.LazyLinear(num_classes)

    def forward(self, features):
        return self.output(self.middle(self.flatten(features)))


def build(feature_shape, num_classes):
    return Net(feature_shape, num_classes, nn.Dropout(0.3))


def with_batch_norm(feature_shape, num_classes):
    size = int(torch.tensor(feature_shape).prod())
    return Net(feature_shape, num_classes, nn.Sequential(nn.Identity(), nn.BatchNorm1d(size)))


class Centred(nn.Module):
    def forward(self, features):
        return features - features.mean(dim=0) if self.training else features


def centred(feature_shape, num_classes):
    return Net(feature_shape, num_classes, Centred())


def raises(feature_shape, num_classes):
    raise RuntimeError("no weights\nhere")


def no_module(feature_shape, num_classes):
    return "a model"


def no_parameters(feature_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(num_classes))


def frozen(feature_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).requires_grad_(False)


def too_many_logits(feature_shape, num_classes):
    return Net(feature_shape, num_classes + 1)


def no_tensor(feature_shape, num_classes):
    class Pair(Net):
        def forward(self, features):
            return (super().forward(features),)

    return Pair(feature_shape, num_classes)


def other_shape(feature_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_classes))


def elsewhere(feature_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes, device="meta"))


def the_same(feature_shape, num_classes):
    return shared


def unseeded(feature_shape, num_classes):
    global calls
    calls += 1
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
    nn.init.constant_(model[1].bias, calls)
    return model


class Holder:
    build = staticmethod(build)


not_callable = 3
