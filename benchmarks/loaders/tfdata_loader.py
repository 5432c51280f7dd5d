"""tf.data, in its own operations where it has them, with two threads."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import tensorflow as tf

from loaders import work

WORKLOADS = ["W1", "W2", "W3", "W4"]


def decode_crop_flip(path):
    data = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(data),
        tf.zeros([1, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(0.75, 1.33),
        use_image_if_no_bounding_boxes=True,
    )
    y, x, _ = tf.unstack(begin)
    h, w, _ = tf.unstack(size)
    image = tf.image.decode_and_crop_jpeg(data, tf.stack([y, x, h, w]), channels=3)
    image = tf.image.resize(image, (work.CROP, work.CROP))
    return tf.cast(tf.image.random_flip_left_right(image), tf.uint8)


def pad_crop_flip_normalize(image, label):
    image = tf.image.random_crop(tf.pad(image, [[4, 4], [4, 4], [0, 0]]), (32, 32, 3))
    image = tf.image.random_flip_left_right(image)
    return (tf.cast(image, tf.float32) - work.MEAN) / work.STD, label


def open_flow(workload, directory):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    size = work.BATCH[workload]
    if workload == "W1":
        flow = tf.data.Dataset.from_tensor_slices(work.files_of(directory)).shuffle(work.SAMPLES)
        flow = flow.map(decode_crop_flip, num_parallel_calls=2)
    elif workload == "W2":
        flow = tf.data.Dataset.from_tensors(work.INSTANT).repeat(work.INSTANT_SAMPLES)
    elif workload == "W3":
        flow = tf.data.Dataset.from_tensor_slices(work.small_arrays()).shuffle(work.SMALL)
    else:
        flow = tf.data.Dataset.from_tensor_slices(work.tiny_images()).shuffle(work.TINY_IMAGES)
        flow = flow.map(pad_crop_flip_normalize, num_parallel_calls=2)
    flow = flow.batch(size, drop_remainder=True).prefetch(4).with_options(options)
    return flow.as_numpy_iterator() if workload == "W1" else flow
