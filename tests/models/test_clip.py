"""The CLIP models: the paper's architecture from a file, open_clip's code, errors by name."""

import pytest
import torch

from tricouple_lab.conf.compose import configure
from tricouple_lab.conf.schema import Clip
from tricouple_lab.experiments.clip import CLIP
from tricouple_lab.experiments.runs.run import initial_encoder
from tricouple_lab.models.encoders import build_clip


def config(*words):
    return configure(words, Clip)


def build_model(config):
    return initial_encoder(CLIP, config, None)


@pytest.fixture(scope="module")
def paper():
    return build_model(config("scale=paper"))


def test_the_papers_image_encoder_is_a_modified_resnet_50(paper):
    from open_clip.modified_resnet import ModifiedResNet

    visual = paper.visual
    assert isinstance(visual, ModifiedResNet)
    layers = [len(getattr(visual, f"layer{n}")) for n in (1, 2, 3, 4)]
    assert layers == [3, 4, 6, 3]
    assert visual.conv3.out_channels == 64  # the width
    assert visual.attnpool.positional_embedding.shape == (7 * 7 + 1, 2048)  # 224 px, pooled by
    assert visual.attnpool.num_heads == 32  # attention
    assert visual.attnpool.c_proj.out_features == 1024


def test_the_papers_text_encoder_is_a_causal_transformer_of_six_layers(paper):
    assert paper.token_embedding.weight.shape == (49408, 512)
    assert paper.positional_embedding.shape == (77, 512)
    assert len(paper.transformer.resblocks) == 6
    assert paper.transformer.resblocks[0].attn.num_heads == 8
    assert paper.text_projection.shape == (512, 1024)
    assert bool(torch.isinf(paper.attn_mask[0, 1:]).all())
    assert not paper.logit_scale.requires_grad


def test_scale_paper_trains_as_the_paper_does():
    found = config("scale=paper")
    training = found.training
    assert (training.batch_size, training.epochs) == (64, 35)
    assert (training.learning_rate, training.weight_decay) == (5e-4, 0.1)
    assert not training.decoupled_decay
    loss = found.loss
    assert (loss["temperature"], loss["epsilon"], loss["n_iters"]) == (0.1, 0.1, 10)
    ot = config("scale=paper", "loss=iot").loss
    assert (ot["epsilon"], ot["n_iters"]) == (0.01, 5)  # the public CLIP code's


@pytest.mark.parametrize("model", ["small", "tiny"])
def test_small_models_embed_both_modalities_in_one_space(model):
    found = config(f"model={model}")
    built = build_model(found)
    side, length = found.model.vision["image_size"], found.model.text["context_length"]
    images = built.encode_image(torch.randn(2, 3, side, side))
    texts = built.encode_text(torch.ones(2, length, dtype=torch.long))
    assert images.shape == texts.shape == (2, found.model.embed_dim)


def test_seeds_give_weights():
    one, again, other = (build_model(config("model=tiny", f"seed={s}")) for s in (0, 0, 1))
    assert torch.equal(one.token_embedding.weight, again.token_embedding.weight)
    assert not torch.equal(one.token_embedding.weight, other.token_embedding.weight)


@pytest.mark.parametrize(
    ("vision", "text", "complaint"),
    [
        ({"depth": 3}, {}, "model.vision.depth: open_clip has no such setting but layers"),
        ({}, {"head": 3}, "model.text.head: open_clip has no such setting"),
        ({"image_size": 8}, {}, "open_clip cannot build it"),
        ({}, {"heads": 5}, "open_clip cannot build it"),
    ],
)
def test_impossible_models_are_refused_by_name(vision, text, complaint):
    base = config("model=tiny").model
    with pytest.raises(ValueError, match=complaint):
        build_clip(base.embed_dim, {**base.vision, **vision}, {**base.text, **text})


def test_a_vision_transformer_is_one_number_of_layers():
    base = config("model=tiny").model
    vision = {"layers": 1, "width": 32, "head_width": 32, "patch_size": 8, "image_size": 16}
    built = build_clip(base.embed_dim, vision, base.text)
    assert built.encode_image(torch.randn(2, 3, 16, 16)).shape == (2, base.embed_dim)
