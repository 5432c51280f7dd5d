// Classifies an image with a model that towerpack exported to LiteRT.
//
//   node classify_litert.mjs MODEL.tflite IMAGE DIM...
//
// IMAGE is a file of float32 numbers, DIM its shape. Prints the five most likely classes. LiteRT.js
// wants the shape that the file has: export with batch_size=1.

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import vm from "node:vm";

const TOP = 5;

// Packages are looked for where NODE_PATH says too, which `import` does not do.
const require = createRequire(import.meta.url);

// LiteRT.js is made for browsers: it loads its WebAssembly by a function of web workers. The script
// itself knows Node.js, if it is run as what it is, a CommonJS module.
globalThis.self = globalThis;
globalThis.importScripts = (script) => {
  const module = { exports: {} };
  const names = ["module", "exports", "require", "__filename", "__dirname"];
  const run = vm.compileFunction(fs.readFileSync(script, "utf8"), names, { filename: script });
  run(module, module.exports, createRequire(script), script, path.dirname(script));
  globalThis.ModuleFactory = module.exports;
};

async function main([file, image, ...dims]) {
  if (!dims.length) throw new Error("expected MODEL.tflite IMAGE DIM...");
  const entry = require.resolve("@litertjs/core");
  const { loadLiteRt, loadAndCompile, Tensor } = await import(entry);
  await loadLiteRt(path.join(path.dirname(entry), "..", "wasm"));

  const model = await loadAndCompile(new Uint8Array(fs.readFileSync(file)), { accelerator: "wasm" });
  const bytes = fs.readFileSync(image);
  const pixels = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const [output] = await model.run([new Tensor(pixels, dims.map(Number))]);
  Array.from(output.toTypedArray())
    .map((score, index) => ({ score, index }))
    .sort((a, b) => b.score - a.score)
    .slice(0, TOP)
    .forEach(({ score, index }) => console.log(`${index} ${score.toFixed(6)}`));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`classify: ${error.message}`);
  process.exit(1);
});
