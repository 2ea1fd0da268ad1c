// Runs a causal language model of transformers.js on the passes that driver.py gives it, and writes every output of each pass.
// Usage: node driver.mjs MODULE FOLDER PASSES.json OUT
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [module, folder, passes, out] = process.argv.slice(2);
const { AutoModelForCausalLM, Tensor, env } = await import(pathToFileURL(module));
env.allowRemoteModels = false;
env.localModelPath = path.dirname(folder) + "/";
const model = await AutoModelForCausalLM.from_pretrained(path.basename(folder), { dtype: "fp32", device: "cpu" });
const int64 = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
let past = null;
let first = 0;
for (const [index, tokens] of JSON.parse(fs.readFileSync(passes)).entries()) {
    const all = first + tokens.length;
    const given = { input_ids: int64(tokens), attention_mask: int64(Array(all).fill(1)) };
    if (past) given.past_key_values = past;
    const outputs = await model(given);
    past = Object.fromEntries(Object.entries(outputs).filter(([name]) => name.startsWith("present"))
        .map(([name, tensor]) => [name.replace("present", "past_key_values"), tensor]));
    const shapes = {};
    for (const [name, tensor] of Object.entries(outputs)) {
        if (!tensor?.data) continue;
        shapes[name] = tensor.dims;
        fs.writeFileSync(path.join(out, `${index}-${Object.keys(shapes).length - 1}`), Buffer.from(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength));
    }
    fs.writeFileSync(path.join(out, `${index}.json`), JSON.stringify(shapes));
    first = all;
}
