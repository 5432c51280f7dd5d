import io

import pytest
from rich.console import Console

from towerpack._tensorflow import tf, v1
from towerpack.models import (
    BatchNorm,
    BNReLU,
    Conv2D,
    Embedding,
    FullyConnected,
    MaxPooling,
    ModelDesc,
    MultiHeadAttention,
    SqueezeExcite,
    disable_layer_logging,
    model_summary,
)
from towerpack.models.summary import ModelTable, log_model, table_of_tower
from towerpack.optimizer import Adam
from towerpack.tower import TowerContext, TowerFunc, VariableStore
from towerpack.tower.varreplace import freeze_variables

layers = tf.keras.layers
IMAGE = [tf.TensorSpec([None, 8, 8, 3], name="image")]


def tower(x):
    x = Conv2D("conv0", x, 16, 3, activation=BNReLU)
    x = MaxPooling("pool0", x, 2)
    with v1.variable_scope("block"):
        x = SqueezeExcite("se", x, 4)
    x = BatchNorm("bn", x)
    return FullyConnected("fc", x, 10)


def columns(table, *names):
    return [tuple(getattr(row, name) for name in names) for row in table.rows]


def test_one_row_for_each_named_layer_in_the_order_of_calls():
    table = model_summary(tower, IMAGE)
    assert columns(table, "name", "kind", "output", "parameters") == [
        ("conv0", "Conv2D", "[None, 8, 8, 16]", 480),
        ("pool0", "MaxPooling", "[None, 4, 4, 16]", 0),
        ("block/se", "SqueezeExcite", "[None, 4, 4, 16]", 148),
        ("bn", "BatchNorm", "[None, 4, 4, 16]", 32),
        ("fc", "FullyConnected", "[None, 10]", 2570),
    ]
    assert table.parameters == table.trainable == 3230
    assert (table.weights, table.state) == (3230 * 4, 4 * 16 * 4)
    assert table.optimizer is None
    assert [row.memory for row in table.rows][:5] == [4096, 1024, 1024, 1024, 40]
    assert table.batch is None and not table.note and not table.uncounted


def conv(groups):
    return layers.Conv2D(6, 3, groups=groups, use_bias=False, padding="same")


def loop(x):
    x = tf.while_loop(lambda x: tf.reduce_sum(x) < 9, lambda x: [x + 1.0], [x])[0]
    return tf.ensure_shape(x, [None, 5])


def branch(x):
    return tf.cond(tf.reduce_sum(x) < 9, lambda: FullyConnected("fc", x, 2), lambda: x[:, :2])


@pytest.mark.parametrize(
    "function, shape, flops",
    [
        (lambda x: layers.Dense(5)(x), [7], 2 * 7 * 5 + 5),
        (lambda x: FullyConnected("fc", x, 5), [7], 2 * 7 * 5 + 5),
        (lambda x: conv(1)(x), [8, 8, 4], 2 * 8 * 8 * 6 * 9 * 4),
        (lambda x: conv(2)(x), [8, 8, 4], 2 * 8 * 8 * 6 * 9 * 2),
        (lambda x: Conv2D("c", x, 6, 3, split=2, use_bias=False), [8, 8, 4], 2 * 64 * 6 * 9 * 2),
        (lambda x: layers.DepthwiseConv2D(3, use_bias=False)(x), [8, 8, 4], 2 * 36 * 4 * 9),
        (
            lambda x: layers.Conv2DTranspose(6, 3, strides=2, use_bias=False)(x),
            [8, 8, 4],
            2 * 64 * 4 * 9 * 6,
        ),
        (lambda x: tf.matmul(x, x, transpose_b=True), [5, 7], 2 * 5 * 5 * 7),
        (lambda x: tf.matmul(x, x, transpose_a=True), [5, 7], 2 * 7 * 7 * 5),
        (lambda x: tf.einsum("...qd,...kd->...qk", x, x), [3, 5, 7], 2 * 3 * 5 * 5 * 7),
        (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [8, 8, 4], 4 * 4 * 4 * 4),
        (lambda x: tf.nn.softmax(tf.nn.relu(x)), [10], 10 + 5 * 10),
        # Rows of a sequence become samples, so that the first size is not that of the batch.
        (lambda x: tf.reshape(x, [-1, 7]) * 2.0, [5, 7], 35),
    ],
)
def test_flops_are_those_counted_by_hand(function, shape, flops):
    table = model_summary(function, [tf.TensorSpec([None, *shape], name="x")])
    assert table.flops == flops
    assert not table.uncounted


def test_flops_of_attention():
    table = model_summary(
        lambda x: MultiHeadAttention("attention", x, num_heads=2, key_dim=4),
        [tf.TensorSpec([None, 5, 8], name="x")],
    )
    reference = layers.MultiHeadAttention(2, 4)
    theirs = model_summary(
        lambda x: reference(x, x, use_causal_mask=False),
        [tf.TensorSpec([None, 5, 8], name="x")],
    )
    products = 4 * 2 * 5 * 8 * 8 + 2 * 2 * (2 * 5 * 5 * 4)  # projections; scores and their sums
    for each in (table, theirs):
        assert each.parameters == 4 * (8 * 8 + 8)
        assert products < each.flops < 1.25 * products  # biases, scaling, softmax
        assert len([row for row in each.rows if row.kind == "MultiHeadAttention"]) == 1


def test_products_and_convolutions_count_as_in_tensorflows_profiler():
    def network(x):
        x = tf.nn.conv2d(x, tf.ones([3, 3, 3, 8]), 2, "SAME")
        x = tf.nn.depthwise_conv2d(x, tf.ones([3, 3, 8, 2]), [1, 1, 1, 1], "VALID")
        return tf.reshape(x, [-1, 2 * 2 * 16]) @ tf.ones([64, 5])

    with tf.Graph().as_default() as graph:
        network(v1.placeholder(tf.float32, [1, 8, 8, 3]))
    options = v1.profiler.ProfileOptionBuilder(
        v1.profiler.ProfileOptionBuilder.float_operation()
    ).with_empty_output()
    profile = v1.profiler.profile(graph, options=options.build())
    assert model_summary(network, IMAGE).flops == profile.total_float_ops


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, multiply_adds, size",  # as their authors and torchvision give them
    [("MobileNetV2", 300e6, 3_538_984), ("ResNet50", 3.87e9, 25_636_712)],
)
def test_known_models_have_their_known_numbers(name, multiply_adds, size):
    model = getattr(tf.keras.applications, name)(weights=None)
    table = model_summary(model)
    assert table.flops == pytest.approx(2 * multiply_adds, rel=0.05)
    assert table.parameters + table.state // 4 == model.count_params() == size
    assert not table.uncounted
    assert len(table.rows) == len(model.layers) - 1  # without the input


def test_what_cannot_be_counted_is_named():
    def network(x):
        return FullyConnected("fc", loop(tf.abs(tf.signal.rfft(x))), 2)

    table = model_summary(network, [tf.TensorSpec([None, 8], name="x")])
    assert table.rows[-1].uncounted == {"RFFT": 1, "StatelessWhile": 1}
    assert table.rows[0].uncounted == {"MatMul of unknown size": 1, "BiasAdd of unknown size": 1}
    assert "not counted, because their FLOPs are unknown: 1 MatMul of unknown size" in str(table)
    free = model_summary(
        lambda x: Conv2D("c", x, 4, 3), [tf.TensorSpec([None, None, None, 3], name="x")]
    )
    assert free.rows[0].uncounted == {"Conv2D of unknown size": 1, "BiasAdd of unknown size": 1}
    assert free.rows[0].memory is None


def test_a_layer_in_a_branch_has_parameters_but_no_flops():
    table = model_summary(branch, [tf.TensorSpec([None, 8], name="x")])
    assert columns(table, "name", "parameters", "flops", "memory")[0] == ("fc", 18, None, None)
    assert list(table.uncounted) == ["If"] or list(table.uncounted) == ["StatelessIf"]


def test_a_model_of_fixed_batch_is_counted_as_a_whole():
    table = model_summary(lambda x: layers.Dense(3)(x), [tf.TensorSpec([4, 2], name="x")])
    assert (table.batch, table.flops) == (4, 4 * (2 * 2 * 3 + 3))
    assert "with a batch of 4" in str(table)


def test_a_model_that_takes_no_batch_of_one_says_so():
    def pairs(x):
        return layers.Dense(3)(tf.concat([x, tf.zeros([4, 2])], 1))

    table = model_summary(pairs, [tf.TensorSpec([None, 2], name="x")])
    assert table.parameters == 15
    assert table.rows[0].flops is None
    assert "one sample does not fit" in str(table)


def test_keras_layers_and_models_have_rows_with_paths_and_shared_ones_count_once():
    shared = layers.Dense(3, name="shared")

    class Own(tf.keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.inner = tf.keras.Sequential([layers.Dense(3, name="d")], name="inner")
            self.scale = self.add_weight(shape=[3], name="scale")

        def call(self, x):
            return self.inner(x) * self.scale

    model = Own()

    def network(x):
        return model(shared(shared(x)))

    table = model_summary(network, [tf.TensorSpec([None, 3], name="x")])
    assert columns(table, "name", "kind", "parameters", "flops") == [
        ("shared", "Dense", 12, 21),
        ("shared", "Dense", 0, 21),
        ("own", "Own, rest", 3, 3),
        ("own/inner/d", "Dense", 12, 21),
    ]
    assert table.parameters == 27


def test_plain_variables_have_rows():
    def network(x):
        return x @ v1.get_variable("kernel", [4, 5]) + tf.Variable(tf.zeros([5]), name="bias")

    table = model_summary(network, [tf.TensorSpec([None, 4], name="x")])
    assert columns(table, "name", "kind", "output", "parameters", "flops") == [
        ("kernel", "variable", "[4, 5]", 20, 0),
        ("bias", "variable", "[5]", 5, 0),
        ("outside of layers", "", "", 0, 45),
    ]


def test_what_is_frozen_is_shown_with_the_reason():
    x = tf.keras.Input([3])
    base = tf.keras.Model(
        x, layers.Dense(4, name="b")(layers.BatchNormalization(name="bn")(x)), name="base"
    )
    base.layers[1].trainable = False
    whole = layers.Dense(4, name="whole", trainable=False)

    def network(x):
        x = FullyConnected("fc0", x, 3)
        x = layers.Dropout(0.5)(whole(base(x)))
        with v1.variable_scope("head"):
            x = layers.Dense(2)(x)
            with freeze_variables(skip_collection=True):
                return FullyConnected("fc1", x, 2)

    table = model_summary(network, [tf.TensorSpec([None, 3], name="x")])
    assert columns(table, "name", "parameters", "trainable", "frozen") == [
        ("fc0", 12, 12, ""),
        ("base/bn", 6, 0, "all: bn.trainable=False"),
        ("base/b", 16, 16, ""),
        ("whole", 20, 0, "all: whole.trainable=False"),
        ("dropout", 0, 0, ""),
        ("head/dense", 10, 10, ""),
        ("head/fc1", 6, 0, "all: freeze_variables"),
    ]
    assert "38 of 70 parameters are trained" in str(table)


class Model(ModelDesc):
    def inputs(self):
        return [tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([None], tf.int32, "label")]

    def build_graph(self, x, label):
        x = Embedding("table", label, 9, 4) + x
        logits = FullyConnected("fc", x, 3)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits)
        return tf.reduce_mean(losses, name="cost")

    def optimizer(self):
        return Adam(0.01)


def test_the_slots_of_the_optimizer_and_a_model_that_can_still_be_trained():
    model = Model()
    table = model_summary(model)
    assert table.parameters == 9 * 4 + 15
    assert 2 * table.weights < table.optimizer < 2 * table.weights + 50  # moments and counters
    assert model.get_optimizer() is model.get_optimizer()
    compiled = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(3)])
    assert model_summary(compiled).optimizer is None
    compiled.compile("sgd", "mse")
    compiled.optimizer.build(compiled.trainable_variables)
    assert model_summary(compiled).optimizer == 4 + 4 + 4 or model_summary(compiled).optimizer < 20


def test_several_inputs_and_models_without_inputs():
    a, b = tf.keras.Input([4], name="a"), tf.keras.Input([4], name="b")
    model = tf.keras.Model({"a": a, "b": b}, layers.Add()([layers.Dense(4)(a), b]))
    table = model_summary(model)
    assert table.parameters == 20
    bare = tf.keras.Sequential([layers.Dense(2)])
    with pytest.raises(ValueError, match="does not know its inputs; expected inputs="):
        model_summary(bare)
    assert model_summary(bare, [tf.TensorSpec([None, 3], name="x")]).parameters == 8
    with pytest.raises(ValueError, match="needs inputs=, a list of tf.TensorSpec"):
        model_summary(tower)
    with pytest.raises(TypeError, match="expected a ModelDesc, .* received 3"):
        model_summary(3)


def test_the_training_tower_has_the_same_rows_without_another_trace():
    store, specs = VariableStore(), IMAGE
    calls = []

    def counted(x):
        calls.append(1)
        return tower(x)

    function = TowerFunc(counted, specs)

    @tf.function(input_signature=specs, autograph=False)
    def step(x):
        with TowerContext("", is_training=True, store=store):
            cost = tf.reduce_sum(function(x).output)
            tf.gradients(cost, list(store.trainable().values()))

    step.get_concrete_function()
    table = table_of_tower(function.towers[0], store, [])
    expected = model_summary(tower, IMAGE)
    names = ("name", "kind", "output", "parameters")
    assert sorted(columns(table, *names)) == sorted(columns(expected, *names))
    assert table.rows[0].flops > expected.rows[0].flops  # the statistics of the batch
    assert table.rows[4].flops == expected.rows[4].flops
    assert len(calls) == 1


def test_an_eager_tower_has_parameters_alone():
    store, function = VariableStore(), TowerFunc(tower, IMAGE)
    with TowerContext("", is_training=True, store=store):
        function(tf.zeros([2, 8, 8, 3]))
    table = table_of_tower(function.towers[0], store, [])
    assert table.parameters == 3230
    assert table.rows[0].flops is None
    assert "the tower ran eagerly" in str(table)
    assert not table.nodes


def test_it_prints_as_plain_text_and_with_rich_and_returns_from_json():
    table = model_summary(
        lambda x: FullyConnected("fc", x, 3), [tf.TensorSpec([None, 4], name="x")]
    )
    assert (
        str(table)
        == """\
layer  kind            output     parameters  FLOPs  memory
fc     FullyConnected  [None, 3]          15     27    12 B
total                                     15     27    12 B
15 of 15 parameters are trained
memory: weights 60 B, state 0 B, outputs of layers 12 B for one sample
FLOPs are those of a forward call with one sample; a multiply-add counts two"""
    )
    stream = io.StringIO()
    Console(file=stream, width=100).print(table)
    assert "FullyConnected" in stream.getvalue()
    assert ModelTable.from_dict(table.to_dict()) == table


def test_a_long_table_is_shortened_in_the_log(capsys, monkeypatch):
    monkeypatch.setattr("towerpack.models.summary._logging", True)

    def deep(x):
        for number in range(70):
            x = FullyConnected(f"fc{number}", x, 2)
        return x

    table = model_summary(deep, [tf.TensorSpec([None, 2], name="x")])
    assert len(str(table).splitlines()) == 1 + 70 + 1 + 3
    log_model(table)
    logged = capsys.readouterr().err
    assert "... 10 more" in logged and "fc29 " in logged and "fc35 " not in logged
    disable_layer_logging()
    log_model(table)
    assert not capsys.readouterr().err


def test_the_boxes_of_the_picture_follow_the_values():
    def residual(x, label):
        x = Conv2D("a", x, 4, 3)
        size = tf.shape(x)[0]
        y = Conv2D("b", tf.nn.relu(x), 4, 3)
        x = tf.nn.relu(tf.reshape(x + y, [size, 8, 8, 4]))
        FullyConnected("unused", x, 2)
        return tf.reduce_mean(FullyConnected("fc", x, 3)) + tf.cast(label[0], tf.float32)

    specs = [*IMAGE, tf.TensorSpec([None], tf.int32, "label")]
    nodes = model_summary(residual, specs).nodes
    names = [node.name or node.kind for node in nodes]
    assert names == ["image", "label", "a", "b", "AddV2", "unused", "fc", "AddV2"]
    assert [node.inputs for node in nodes] == [(), (), (0,), (2,), (2, 3), (4,), (4,), (1, 6)]
