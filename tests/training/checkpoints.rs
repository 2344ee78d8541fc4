//! Models in Hugging Face's files: read, written, refused; and text sampled from them.

use crate::support::{checkpoint, debug_state, golden, golden_json};
use pipesim::internals::checkpoint::{read, read_folder, stored_tensors, write};
use pipesim::internals::model::{Config, Parameters, WholeModel};
use pipesim::internals::model_spec::huggingface;
use pipesim::internals::training_loop::Sampling;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The tensors of a file.
fn tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all =
        file.iter().map(|(name, view)| (name.to_string(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())));
    all.collect()
}

fn save(tensors: &Tensors, path: &Path) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, path).unwrap();
}

fn gpt2() -> Parameters {
    Parameters::random(&Config::gpt(131, 16, 3, 2, 8), 7).unwrap()
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("model.safetensors")
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = gpt2();
    write(&file(&folder), &gpt2).unwrap();
    assert!(read_folder(folder.path(), &gpt2.config).unwrap() == gpt2);
    let written = tensors(&file(&folder));
    assert_eq!(written["transformer.wte.weight"].1, [131, 8], "without padding");
    assert_eq!(written["transformer.h.2.mlp.c_fc.weight"].1, [8, 32], "(inputs, outputs)");
    assert!(!written.contains_key("lm_head.weight"));
    // Files of the model without its head, with buffers of old versions, and with a head equal to the embedding.
    let mut other: Tensors =
        written.iter().map(|(name, tensor)| (name.replace("transformer.", ""), tensor.clone())).collect();
    other.insert("h.0.attn.bias".to_string(), (Dtype::U8, vec![1], vec![1]));
    other.insert("lm_head.weight".to_string(), other["wte.weight"].clone());
    save(&other, &file(&folder));
    assert!(read_folder(folder.path(), &gpt2.config).unwrap() == gpt2);
    // Several files with an index.
    std::fs::remove_file(file(&folder)).unwrap();
    let (first, second): (Tensors, Tensors) =
        written.iter().map(|(n, t)| (n.clone(), t.clone())).partition(|(n, _)| n.contains(".h.1."));
    save(&first, &folder.path().join("model-00001-of-00002.safetensors"));
    save(&second, &folder.path().join("model-00002-of-00002.safetensors"));
    let map = |number: usize, tensors: &Tensors| {
        let file = format!("model-0000{number}-of-00002.safetensors");
        tensors.keys().map(|name| (name.clone(), file.clone())).collect::<BTreeMap<_, _>>()
    };
    let (mut all, rest) = (map(1, &first), map(2, &second));
    all.extend(rest);
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": all}).to_string()).unwrap();
    assert!(read_folder(folder.path(), &gpt2.config).unwrap() == gpt2);
    all.insert("lm_head.weight".to_string(), "../elsewhere.safetensors".to_string());
    std::fs::write(&index, serde_json::json!({"weight_map": all}).to_string()).unwrap();
    let error = format!("{:#}", read_folder(folder.path(), &gpt2.config).unwrap_err());
    assert!(error.contains("../elsewhere.safetensors"), "{error}");
}

#[test]
fn half_precision_is_widened() {
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = gpt2();
    write(&file(&folder), &gpt2).unwrap();
    let mut halved = tensors(&file(&folder));
    for (number, (dtype, _, data)) in halved.values_mut().enumerate() {
        let floats = data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (*dtype, *data) = match number % 2 {
            0 => (Dtype::BF16, floats.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()),
            _ => (Dtype::F16, floats.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect()),
        };
    }
    save(&halved, &file(&folder));
    let found = read(&[file(&folder)], &gpt2.config).unwrap();
    for (one, other) in found.tensors.iter().flatten().zip(gpt2.tensors.iter().flatten()) {
        assert!((one - other).abs() <= 0.004 * other.abs() + 1e-7, "{one} {other}");
    }
}

#[test]
fn a_wrong_tensor_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = gpt2();
    write(&file(&folder), &gpt2).unwrap();
    let right = tensors(&file(&folder));
    let name = "transformer.h.1.attn.c_attn.bias";
    let refused = |tensors: &Tensors, expected: &[&str]| {
        save(tensors, &file(&folder));
        let error = format!("{:#}", read_folder(folder.path(), &gpt2.config).unwrap_err());
        assert!(expected.iter().all(|part| error.contains(part)), "{expected:?}: {error}");
    };
    let mut wrong = right.clone();
    wrong.remove(name);
    refused(&wrong, &[name, "1 missing"]);
    let mut wrong = right.clone();
    wrong.insert("transformer.h.3.ln_1.weight".to_string(), right["transformer.h.0.ln_1.weight"].clone());
    refused(&wrong, &["transformer.h.3.ln_1.weight", "1 unknown"]);
    let mut wrong = right.clone();
    wrong.get_mut(name).unwrap().1 = vec![4, 6];
    refused(&wrong, &[name, "[24]", "[4, 6]"]);
    let mut wrong = right.clone();
    wrong.get_mut(name).unwrap().0 = Dtype::I32;
    refused(&wrong, &[name, "I32"]);
    let mut wrong = right.clone();
    wrong.insert("lm_head.weight".to_string(), (Dtype::F32, vec![131, 8], vec![0; 131 * 8 * 4]));
    refused(&wrong, &["lm_head.weight", "tie_word_embeddings"]);
    std::fs::write(file(&folder), &std::fs::read(file(&folder)).unwrap()[..500]).unwrap();
    assert!(read_folder(folder.path(), &gpt2.config).is_err());
}

#[test]
fn every_tensor_of_the_golden_gpt2_has_a_name() {
    let config = checkpoint().config;
    assert_eq!(stored_tensors(&config).unwrap().len(), 4 + 12 * config.layers);
}

#[test]
fn logits_of_growing_sequences_are_pytorchs() {
    let (parameters, state) = (checkpoint(), debug_state());
    let vocabulary = parameters.config.vocabulary;
    let mut model = WholeModel::new(&parameters, state.tokens).unwrap();
    for length in [1, 2, 7, 31, 32] {
        let logits = model.logits(&state.inputs[..length]).unwrap();
        let expected = &state.logits[(length - 1) * vocabulary..length * vocabulary];
        let worst = logits.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{length} tokens: {worst}");
    }
    assert!(model.logits(&[]).is_err() && model.logits(&[0; 33]).is_err());
    assert!(WholeModel::new(&parameters, 65).is_err());
}

/// One of PyTorch's small Llamas: its parameters, and what PyTorch says of it.
pub fn llama(case: &str) -> (Parameters, Value) {
    let folder = golden("llama").join(case);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = huggingface::read(&config).unwrap().config;
    (read_folder(&folder, &config).unwrap(), golden_json(format!("llama/{case}/expected.json")))
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn llamas_are_written_as_they_were_read_and_continue_prompts_as_under_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["A", "B", "C"] {
        let (parameters, expected) = llama(case);
        write(&file(&folder), &parameters).unwrap();
        assert!(tensors(&file(&folder)) == tensors(&golden("llama").join(case).join("model.safetensors")), "{case}");
        let (prompt, continued) = (ids(&expected["sample_prompt"]), ids(&expected["sample_greedy"]));
        let sampled = Sampling::default().sample(&parameters, &prompt, continued.len(), 0).unwrap();
        assert_eq!(sampled, continued, "{case}");
    }
}

#[test]
fn logits_of_a_llama_are_pytorchs() {
    for case in ["A", "B"] {
        let (parameters, _) = llama(case);
        let stored = tensors(&golden("llama").join(case).join("logits.safetensors"));
        compare(&parameters, &stored["tokens"], &stored["logits"], case);
    }
}

/// Compares the logits after each of some tokens with others'.
fn compare(
    parameters: &Parameters,
    tokens: &(Dtype, Vec<usize>, Vec<u8>),
    logits: &(Dtype, Vec<usize>, Vec<u8>),
    what: &str,
) {
    let width = tokens.2.len() / tokens.1.iter().product::<usize>();
    let ids: Vec<u32> = tokens.2.chunks(width).map(|id| u32::from_le_bytes(id[..4].try_into().unwrap())).collect();
    let logits: Vec<f32> = logits.2.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let vocabulary = parameters.config.vocabulary;
    let mut model = WholeModel::new(parameters, ids.len()).unwrap();
    let mut worst = 0.0_f32;
    for length in 1..=ids.len() {
        let found = model.logits(&ids[..length]).unwrap();
        let expected = &logits[(length - 1) * vocabulary..length * vocabulary];
        worst = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(worst, f32::max);
    }
    println!("{what}: logits of {} tokens differ by at most {worst:e}", ids.len());
    assert!(worst < 1e-4, "{what}: {worst:e}");
}

#[test]
#[ignore = "tests/pytorch/checkpoint runs it"]
fn logits_of_a_checkpoint_are_those_of_transformers() {
    let folder = PathBuf::from(std::env::var_os("PIPESIM_CHECKPOINT").expect("PIPESIM_CHECKPOINT"));
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = huggingface::read(&config).unwrap().config;
    let stored = tensors(&folder.join("logits.safetensors"));
    compare(
        &read_folder(&folder, &config).unwrap(),
        &stored["tokens"],
        &stored["logits"],
        &folder.display().to_string(),
    );
}

#[test]
fn every_element_but_the_padding_is_stored_once() {
    let gpt2 = Config::gpt(257, 16, 3, 2, 8);
    for config in [gpt2, Config { tied: false, ..gpt2 }] {
        let stored = stored_tensors(&config).unwrap();
        let count: usize = stored.iter().map(|tensor| tensor.range.len()).sum();
        assert_eq!(count as u128, config.spec().parameters());
        assert!(stored.iter().all(|tensor| tensor.shape.iter().product::<usize>() == tensor.range.len()));
        assert_eq!(stored[4].name, "transformer.h.2.ln_1.weight");
        let names: BTreeSet<&str> = stored.iter().map(|tensor| &*tensor.name).collect();
        assert_eq!(names.len(), stored.len());
    }
}

#[test]
fn rows_of_products_become_columns_of_the_file() {
    let config = Config::gpt(5, 4, 1, 1, 2);
    let stored = stored_tensors(&config).unwrap();
    let qkv = stored.iter().find(|tensor| tensor.name.ends_with("c_attn.weight")).unwrap();
    assert_eq!(qkv.shape, [2, 6]);
    // element (input 1, output 4) of the file is element (output 4, input 1) here
    assert_eq!(qkv.place(6 + 4), 4 * 2 + 1);
}
