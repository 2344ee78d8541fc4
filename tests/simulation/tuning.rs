//! Fine-tuning: adapters against what PEFT and Megatron-Bridge print and closed forms; packed texts against shorter sequences.

use pipesim::questions::{Question, answer};
use pipesim::schedules::Files;
use pipesim::{Precision, Recompute, StepEstimate, Zero};

fn asked() -> Question {
    Question {
        schedule: vec!["1f1b".to_string()],
        stages: vec![1],
        micro: vec![4],
        seq: 8192,
        model: Some("llama-3-8b".to_string()),
        hardware: Some("h100-sxm".to_string()),
        memory_cap: "900GiB".parse().ok(),
        ..Question::default()
    }
}

#[track_caller]
fn estimate(question: &Question) -> StepEstimate {
    let answer = answer(question, &Files).unwrap_or_else(|error| panic!("{question:?}: {error}"));
    answer.predictions.into_iter().next().unwrap().estimate.unwrap()
}

fn with_lora(question: Question, lora: &str) -> Question {
    Question { lora: Some(lora.to_string()), ..question }
}

/// `model.print_trainable_parameters()` of PEFT, and the sizes of Megatron-Bridge's adapters by hand.
#[test]
fn adapters_have_the_parameters_that_peft_prints() {
    let known = [
        ("llama-2-7b", "8:q_proj,v_proj", 4_194_304),
        ("llama-2-7b", "16:q_proj,v_proj", 8_388_608),
        ("llama-3-8b", "8:q_proj,v_proj", 3_407_872),
        ("llama-3-8b", "16:all-linear", 41_943_040),
        // one adapter per fused product: rank x (inputs + outputs), 32 layers
        ("llama-3-8b", "16", 32 * 16 * (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096)),
    ];
    for (model, lora, parameters) in known {
        let question = with_lora(Question { model: Some(model.to_string()), seq: 2048, ..asked() }, lora);
        let found = estimate(&question);
        assert_eq!(found.adapter_parameters, Some(parameters), "{model} {lora}");
        let plain = estimate(&Question { lora: None, ..question });
        assert_eq!((found.parameters, plain.adapter_parameters), (plain.parameters, None), "{model}");
    }
}

/// Bytes of Megatron's bf16 training: 2 per weight, and 4 + 12 per trained parameter.
#[test]
fn only_adapters_have_gradients_and_states() {
    let (plain, lora) = (estimate(&asked()), estimate(&with_lora(asked(), "16")));
    let (whole, adapters) = (plain.parameters as u64, lora.adapter_parameters.unwrap() as u64);
    let device = lora.memory.per_device[0];
    assert_eq!(device.weights, 2 * (whole + adapters));
    assert_eq!((device.gradients, device.optimizer), (4 * adapters, 12 * adapters));
    // products without adapters save nothing: with queries' and values' only, less than with all
    let few = estimate(&with_lora(asked(), "16:q_proj,v_proj")).memory.per_device[0];
    assert!(few.activations < device.activations && device.total < plain.memory.per_device[0].total / 2);
    // ranks share what they hold
    let shared = Question { tp: vec![2], zero: Zero::Optimizer, dp: vec![2], sequence_parallel: true, ..asked() };
    let device = estimate(&with_lora(shared, "16:linear_fc1,linear_fc2")).memory.per_device[0];
    let adapters = 32 * 16 * (4096 + 28672 + 14336 + 4096) / 2;
    assert_eq!((device.gradients, device.optimizer), (4 * adapters, 12 * adapters / 2));
}

/// Forward and input gradients are two thirds of the FLOPs of products; scores need both of theirs.
#[test]
fn frozen_weights_have_no_products_of_their_own() {
    let (plain, lora) = (estimate(&asked()), estimate(&with_lora(asked(), "16")));
    let embedding = 128_256.0 * 4096.0;
    let (products, adapters) = (plain.parameters as f64 - embedding, lora.adapter_parameters.unwrap() as f64);
    let scores = 12.0 * 32.0 * 4096.0 * 8192.0;
    let norms = 65.0 * 4096.0;
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    close(plain.model_flops_per_token, 6.0 * (products - norms) + scores);
    close(lora.model_flops_per_token, 4.0 * (products - norms) + scores + 6.0 * adapters);
    let costs = |question: &Question| question.layouts(&Files, &pipesim::questions::Silent).unwrap().remove(0);
    let block = |question: &Question| costs(question).part("block").unwrap();
    let (full, half) = (block(&asked()), block(&with_lora(asked(), "8:linear_qkv")));
    let ratio = half.backward.compute / full.backward.compute;
    assert!((0.5..0.75).contains(&ratio), "{ratio}");
    assert!(half.weights.compute < 0.05 * full.weights.compute);
    assert!(half.forward.compute > full.forward.compute);
}

/// NVIDIA's LoRA recipe of Llama 3 70B on 8 H100s: 2,643 tokens per second and GPU; full fine-tuning on 32: 1,638 (Megatron-Bridge,
/// performance summary of NeMo 26.06). Neither was in a fit.
#[test]
fn published_fine_tuning_is_predicted() {
    let base = Question {
        schedule: vec!["interleaved-1f1b".to_string()],
        stages: vec![4],
        micro: Vec::new(),
        batch: Some(32),
        micro_batch_size: vec![1],
        seq: 4096,
        model: Some("llama-3-70b".to_string()),
        stack: "megatron-bridge".to_string(),
        precision: Precision::Fp8,
        sequence_parallel: true,
        zero: Zero::Optimizer,
        memory_cap: None,
        ..asked()
    };
    let lora = with_lora(Question { tp: vec![2], chunks: Some(20), ..base.clone() }, "16:linear_qkv");
    let full = Question { tp: vec![4], dp: vec![2], chunks: Some(5), ..base };
    for (question, measured) in [(lora, 2643.0), (full, 1638.0)] {
        let found = estimate(&question);
        let error = found.tokens_per_second_per_gpu / measured - 1.0;
        println!(
            "{measured}: {:.0} tokens/s/GPU, {:+.1} %, fits: {}",
            found.tokens_per_second_per_gpu,
            100.0 * error,
            found.memory.fits
        );
        assert!(error.abs() < 0.15 && found.memory.fits, "{error}");
    }
}

/// Texts of half the length are a micro-batch of twice as many sequences.
#[test]
fn packed_texts_are_shorter_sequences() {
    let json = |question: &Question| serde_json::to_string(&estimate(question)).unwrap();
    assert_eq!(json(&Question { packed: vec![8192], ..asked() }), json(&asked()));
    for recompute in [Recompute::None, Recompute::Full] {
        let asked = Question { recompute, ..asked() };
        let packed = Question { packed: vec![2048], ..asked.clone() };
        let short = Question { seq: 2048, micro_batch_size: vec![4], ..asked };
        let (packed, short) = (estimate(&packed), estimate(&short));
        assert_eq!(packed.iteration_s, short.iteration_s);
        assert!((packed.model_flops_per_token / short.model_flops_per_token - 1.0).abs() < 1e-12);
    }
    // two lengths: scores by the sum of squares; the rest by tokens
    let time = |lengths: &[u32]| estimate(&Question { packed: lengths.to_vec(), ..asked() }).time_s.compute;
    let (short, long) = (time(&[1024]), time(&[4096]));
    let mixed = time(&[1024, 1024, 4096]);
    let squares = (2.0 * 1024.0 * 1024.0 + 4096.0 * 4096.0) / 6144.0;
    let expected = short + (long - short) * (squares - 1024.0) / (4096.0 - 1024.0);
    assert!((mixed / expected - 1.0).abs() < 1e-7, "{mixed} {expected}");
}

#[test]
fn what_cannot_be_tuned_is_refused() {
    let error = |question: Question| answer(&question, &Files).unwrap_err().to_string();
    let mixture = Question { model: Some("mixtral-8x7b".to_string()), ..with_lora(asked(), "8") };
    assert!(error(mixture).contains("adapters of experts"));
    assert!(error(Question { packed: vec![9000], ..asked() }).contains("between 1 and the 8192 tokens"));
    let plain = Question { packed: vec![512], attention: "plain".parse().ok(), ..asked() };
    assert!(error(plain).contains("plain attention"));
    let sliced = Question { packed: vec![512], schedule: vec!["seq1f1b".to_string()], stages: vec![2], ..asked() };
    assert!(error(sliced).contains("slices of packed sequences"));
    for (text, expected) in [("0", "expected a rank"), ("8:", "expected targets"), ("8:q", "found 'q'")] {
        let why = text.parse::<pipesim::internals::model_spec::Lora>().unwrap_err();
        assert!(why.contains(expected), "{text}: {why}");
    }
}
