// Classifies an image with a model that towerpack exported to ONNX.
//
//   node classify.js MODEL.onnx IMAGE DIM...
//
// IMAGE is a file of float32 numbers, DIM its shape. Prints the five most likely classes.

"use strict";

const fs = require("node:fs");
const ort = require("onnxruntime-node");

const TOP = 5;

async function main([model, image, ...dims]) {
  if (!dims.length) throw new Error("expected MODEL.onnx IMAGE DIM...");
  const session = await ort.InferenceSession.create(model);
  const bytes = fs.readFileSync(image);
  const pixels = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const input = new ort.Tensor("float32", pixels, dims.map(Number));
  const outputs = await session.run({ [session.inputNames[0]]: input });
  const scores = Array.from(outputs[session.outputNames[0]].data);
  scores
    .map((score, index) => ({ score, index }))
    .sort((a, b) => b.score - a.score)
    .slice(0, TOP)
    .forEach(({ score, index }) => console.log(`${index} ${score.toFixed(6)}`));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`classify: ${error.message}`);
  process.exit(1);
});
