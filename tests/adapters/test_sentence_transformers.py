"""sentence-transformers' conventions: its own loss, its gradient cache, its trainer and cards."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import tricouple as tc
from processes import in_processes
from reference import assert_same, relative_error
from tricouple.adapters.sentence_transformers import CachedSentenceLoss, SentenceLoss

from datasets import Dataset  # isort: skip
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)

COLOURS = ["red", "green", "blue", "black", "white", "grey", "brown"]
ANCHORS = [f"a {colour} car" for colour in COLOURS]
POSITIVES = [f"the {colour} tree" for colour in COLOURS]
NEGATIVES = [f"{colour} house" for colour in reversed(COLOURS)]
COLUMNS = [ANCHORS, POSITIVES, NEGATIVES]
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])


def neg_mmiot() -> tc.NegMMIOT:
    return tc.NegMMIOT(temperature=0.5, epsilon=0.1)


def features(model, n_columns: int, rows: slice = slice(None)) -> list[dict[str, Tensor]]:
    return [model.preprocess(texts[rows]) for texts in COLUMNS[:n_columns]]


def without_dropout(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def value_and_gradient(model, loss, *batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and the gradients of all weights as one vector."""
    model.zero_grad()
    value = loss(*batch)
    (scale * value).backward()
    slopes = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    assert slopes
    return value.detach(), torch.cat(slopes)


@pytest.mark.parametrize("n_columns", [2, 3])
@pytest.mark.parametrize("cached", [False, True])
def test_info_nce_is_multiple_negatives_ranking(bert, n_columns, cached):
    without_dropout(bert)
    ours, theirs = SentenceLoss, MultipleNegativesRankingLoss
    if cached:
        ours, theirs = CachedSentenceLoss, CachedMultipleNegativesRankingLoss
    found = value_and_gradient(bert, ours(bert, tc.InfoNCE(1 / 20)), features(bert, n_columns))
    peer = theirs(bert, scale=20)
    assert_same(found, value_and_gradient(bert, peer, features(bert, n_columns), None), 2e-5)


def test_pairs_are_the_loss_across_and_classes_the_loss_within(static):
    embeddings = [static(column)["sentence_embedding"] for column in features(static, 3)]
    n, criterion = len(ANCHORS), neg_mmiot()
    loss = SentenceLoss(static, criterion)
    ids = torch.arange(n)
    direct = criterion(
        embeddings[0], ids, ref_emb=torch.cat(embeddings[1:]), ref_labels=torch.cat([ids, n + ids])
    )
    assert torch.equal(loss(features(static, 3)), direct)
    assert torch.equal(loss(features(static, 1), LABELS), criterion(embeddings[0], LABELS))
    assert torch.equal(loss(features(static, 1), LABELS[:, None]), criterion(embeddings[0], LABELS))


def test_a_negative_is_never_a_positive(static):
    anchors, positives, negatives = (
        static(column)["sentence_embedding"] for column in features(static, 3)
    )
    loss = SentenceLoss(static, tc.InfoNCE(0.1)).compute_loss_from_embeddings
    easy, as_drawn = loss([anchors, anchors, negatives]), loss([anchors, positives, negatives])
    assert easy < as_drawn < loss([anchors, positives, anchors])


def test_integer_labels_of_pairs_are_ignored_as_there_and_scores_refused(static):
    loss, zeros = SentenceLoss(static, neg_mmiot()), torch.zeros(len(ANCHORS))
    assert torch.equal(loss(features(static, 2), zeros.long()), loss(features(static, 2)))
    with pytest.raises(ValueError, match="as if they were scores"):
        loss(features(static, 2), zeros)


def test_a_last_batch_of_one_gives_zero(static):
    loss = SentenceLoss(static, neg_mmiot())
    for n_columns in (1, 2):
        value = loss(features(static, n_columns, slice(0, 1)), torch.zeros(1, dtype=torch.long))
        value.backward()
        assert value.item() == 0.0


# Gradient caching --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_columns", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 50])
def test_cached_is_plain(bert, n_columns, size):
    without_dropout(bert)
    found = CachedSentenceLoss(bert, neg_mmiot(), mini_batch_size=size)
    wanted = SentenceLoss(bert, neg_mmiot())
    batch = lambda: (features(bert, n_columns), LABELS)  # noqa: E731
    assert_same(
        value_and_gradient(bert, found, *batch()), value_and_gradient(bert, wanted, *batch()), 2e-5
    )


def test_the_second_pass_draws_the_same_dropout(bert):
    bert.train()
    loss = CachedSentenceLoss(bert, neg_mmiot(), mini_batch_size=3)
    seen: list[Tensor] = []
    embed = loss.embed_minibatch

    def recorded(**options):
        embedded, state = embed(**options)
        seen.append(embedded.detach().clone())
        return embedded, state

    loss.embed_minibatch = recorded
    loss(features(bert, 2)).backward()
    assert len(seen) == 12  # two columns of three mini-batches, twice
    assert all(torch.equal(*pair) for pair in zip(seen[:6], seen[6:], strict=True))
    assert not torch.equal(bert(features(bert, 1)[0])["sentence_embedding"][:3], seen[0])


def test_two_cached_batches_before_one_backward_keep_their_gradients(bert):
    without_dropout(bert)
    halves = slice(0, 4), slice(3, 7)
    loss = CachedSentenceLoss(bert, neg_mmiot(), mini_batch_size=2)
    together = lambda: sum(loss(features(bert, 2, half)) for half in halves)  # noqa: E731
    apart = [value_and_gradient(bert, loss, features(bert, 2, half)) for half in halves]
    wanted = [sum(parts) for parts in zip(*apart, strict=True)]
    assert_same(value_and_gradient(bert, together), wanted, 2e-5)


def test_a_learnt_temperature_receives_its_scaled_gradient(bert):
    without_dropout(bert)
    found = []
    for make, options in ((SentenceLoss, {}), (CachedSentenceLoss, {"mini_batch_size": 2})):
        tau = nn.Parameter(torch.tensor(0.1))
        loss = make(bert, tc.InfoNCE(tau), **options)
        slopes = value_and_gradient(bert, loss, features(bert, 2), scale=8.0)
        found.append([*slopes, tau.grad])
    assert_same(*found, 2e-5)


def test_a_cached_loss_is_evaluated_without_gradients(bert):
    bert.eval()
    with torch.no_grad():
        cached = CachedSentenceLoss(bert, neg_mmiot(), mini_batch_size=2)(features(bert, 2))
        plain = SentenceLoss(bert, neg_mmiot())(features(bert, 2))
    assert relative_error(cached, plain) < 2e-5


def test_matryoshka_dimensions_go_with_both(bert):
    without_dropout(bert)
    losses = SentenceLoss(bert, neg_mmiot()), CachedSentenceLoss(bert, neg_mmiot(), 3)
    nested = [MatryoshkaLoss(bert, loss, matryoshka_dims=[16, 8]) for loss in losses]
    plain, cached = (value_and_gradient(bert, loss, features(bert, 2), None) for loss in nested)
    assert_same(cached, plain, 2e-5)
    single = losses[0](features(bert, 2))
    assert plain[0] > single > 0


# The trainer -------------------------------------------------------------------------------------


def train(model, loss, data: Dataset, folder, **options) -> SentenceTransformerTrainer:
    options = {"learning_rate": 0.05, "num_train_epochs": 6, "logging_steps": 1, **options}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, loss=loss
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", ["pairs", "triplets", "classes"])
def test_the_trainer_lowers_the_loss(static, kind, tmp_path):
    data, sampler = {
        "pairs": ({"anchor": ANCHORS, "positive": POSITIVES}, "no_duplicates"),
        "triplets": (dict(zip("apn", COLUMNS, strict=True)), "no_duplicates"),
        "classes": ({"text": ANCHORS, "label": LABELS.tolist()}, "group_by_label"),
    }[kind]
    loss = SentenceLoss(static, neg_mmiot())
    n_columns = 1 if kind == "classes" else len(data)
    before = loss(features(static, n_columns), LABELS).item()
    trainer = train(static, loss, Dataset.from_dict(data), tmp_path, batch_sampler=sampler)
    after = loss(features(static, n_columns), LABELS).item()
    assert after < 0.85 * before
    if kind != "classes":  # all texts fit into one batch; that sampler leaves some out
        assert trainer.evaluate()["eval_loss"] == pytest.approx(after, rel=1e-5)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) >= 6


def test_the_trainer_takes_the_cached_loss_and_accumulates(bert, tmp_path):
    data = Dataset.from_dict({"anchor": ANCHORS, "positive": POSITIVES})
    ends = []
    for make in (SentenceLoss, lambda *a: CachedSentenceLoss(*a, mini_batch_size=3)):
        model = without_dropout(SentenceTransformer(modules=list(bert), device="cpu"))
        weights = [p.detach().clone() for p in model.parameters()]
        options = {"gradient_accumulation_steps": 2, "num_train_epochs": 2, "learning_rate": 1e-3}
        trainer = train(model, make(model, neg_mmiot()), data, tmp_path, seed=1, **options)
        ends.append(trainer.evaluate()["eval_loss"])
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)


def test_the_model_card_names_the_loss_and_cites_the_paper(static, tmp_path):
    data = Dataset.from_dict({"anchor": ANCHORS, "positive": POSITIVES})
    loss = SentenceLoss(static, neg_mmiot())
    train(static, loss, data, tmp_path, num_train_epochs=1)
    static.save_pretrained(str(tmp_path))
    card = (tmp_path / "README.md").read_text()
    assert "loss:SentenceLoss" in card
    assert "NegMMIOT(sharpness=20, temperature=0.5, epsilon=0.1" in card
    assert "Multi-Marginal Inverse Optimal Transport" in card


def test_settings_are_told(bert):
    settings = CachedSentenceLoss(
        bert, neg_mmiot(), 5, gather_across_devices=True
    ).get_config_dict()
    assert settings.pop("criterion").startswith("NegMMIOT(sharpness=20, temperature=0.5")
    assert settings == {"mini_batch_size": 5, "gather_across_devices": True}


# Several processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("n_columns", [1, 3])
def test_gathered_gradients_are_those_of_one_process(bert, n_columns, cached, tmp_path):
    without_dropout(bert)
    shares = [slice(0, 4), slice(4, 7)]
    options = {"mini_batch_size": 2} if cached else {}
    make = CachedSentenceLoss if cached else SentenceLoss

    def share(rank: int) -> tuple[Tensor, Tensor, int]:
        loss, reduced = make(bert, neg_mmiot(), gather_across_devices=True, **options), []
        loss.model = DistributedDataParallel(bert)
        loss.model.register_comm_hook(
            None, lambda _, bucket: [reduced.append(1), allreduce_hook(None, bucket)][1]
        )
        batch = features(bert, n_columns, shares[rank]), LABELS[shares[rank]]
        return *value_and_gradient(bert, loss, *batch), len(reduced)

    wanted = value_and_gradient(
        bert, SentenceLoss(bert, neg_mmiot()), features(bert, n_columns), LABELS
    )
    for *found, messages in in_processes(2, tmp_path, share):
        assert_same(found, wanted, 2e-5)
        assert messages == 1  # gradients are reduced once, however many mini-batches there are


# Bad input ---------------------------------------------------------------------------------------


def test_bad_input_is_refused(bert, static, bert_folder):
    from sentence_transformers.sentence_transformer.modules import Transformer

    loss = SentenceLoss(bert, neg_mmiot())
    uneven = [bert.preprocess(ANCHORS), bert.preprocess(POSITIVES), bert.preprocess(NEGATIVES[:5])]
    with pytest.raises(ValueError, match="column 2 has 5 texts, the anchors are 7"):
        loss(uneven)
    columns = [static.preprocess(["red", "car"]), static.preprocess(["tree", ""])]
    with pytest.raises(ValueError, match="ref_emb must not hold zero vectors, row 1"):
        SentenceLoss(static, neg_mmiot())(columns)
    with pytest.raises(ValueError, match="labels are missing"):
        loss(features(bert, 1))
    unpooled = SentenceTransformer(modules=[Transformer(str(bert_folder))], device="cpu")
    for make in (SentenceLoss, CachedSentenceLoss):
        with pytest.raises(ValueError, match="add a Pooling module"):
            make(unpooled, neg_mmiot())(features(unpooled, 2))
    with pytest.raises(ValueError, match="StaticEmbedding cannot be split"):
        CachedSentenceLoss(static, neg_mmiot())
    learnt = CachedSentenceLoss(bert, tc.InfoNCE(nn.Parameter(torch.tensor(0.1))))
    with pytest.raises(ValueError, match="does not weigh the gradient of a learnable temperature"):
        MatryoshkaLoss(bert, learnt, matryoshka_dims=[16, 8])(features(bert, 2), None)
    with pytest.raises(ValueError, match="mini_batch_size must be at least 1"):
        CachedSentenceLoss(bert, neg_mmiot(), mini_batch_size=0)
    with pytest.raises(TypeError, match="criterion must be a loss of tricouple"):
        SentenceLoss(bert, nn.CrossEntropyLoss())
