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


def with_constants(feature_shape, num_classes):
    model = build(feature_shape, num_classes)
    model.register_buffer("scale", torch.ones(1), persistent=False)
    model.register_buffer("calls", torch.tensor(0))
    return model


class Raises(nn.Module):
    """Raises in training, for more records than it allows."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, features):
        if self.training and len(features) > self.most:
            raise IndexError("no such\nrow")
        return features


def raises_in_training(feature_shape, num_classes):
    return Net(feature_shape, num_classes, Raises(0))


def raises_in_larger_batches(feature_shape, num_classes):
    return Net(feature_shape, num_classes, Raises(4))


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(2, 1)

    def forward(self, features):
        return self.embedding(features.long()).squeeze(-1)


def embeds(feature_shape, num_classes):
    return Net(feature_shape, num_classes, Embeds())


class PairInTraining(nn.Module):
    def forward(self, features):
        return (features, features) if self.training else features


def pair_in_training(feature_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), PairInTraining())


def detached_in_training(feature_shape, num_classes):
    class Detached(Net):
        def forward(self, features):
            return super().forward(features).detach()

    return Detached(feature_shape, num_classes)


class NoNumber(nn.Module):
    def forward(self, features):
        return features if self.training else features * torch.nan


def diverges_in_evaluation(feature_shape, num_classes):
    return Net(feature_shape, num_classes, NoNumber())


def no_number(feature_shape, num_classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
    nn.init.constant_(model[1].bias, torch.nan)
    return model


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
