//! Attention by cuDNN: against the CPU's, and losses against PyTorch's. On the stand-in, or with `PIPESIM_TEST_GPU=1` by cuDNN itself.

use super::{Hardware, Pipeline, child, driver, on_gpu, ten_losses};
use crate::modules::OnGpu as _;
use crate::pipeline::{Order, Steps as _, on_one_device};
use crate::reference;
use crate::support::*;
use cpu_kernels::attention::Shape;
use pipesim::MicroBatch;
use pipesim::internals::compute::cuda::{Demand, Sharing, attention_workspace, bytes_needed};
use pipesim::internals::model::{Parameters, Quantity, StageModule};
use pipesim_gpu::api::{AttentionOperands, AttentionShape, Cudnn, Pass};
use pipesim_gpu::attention::{FusedAttention, take_cudnn, workspace_bytes};
use pipesim_gpu::{Address, Buffer, Gpu, Pinned, Precision, Unsupported};
use std::sync::Arc;

/// Whether cuDNN is here; on a GPU without a usable one, why not is said.
pub fn has_cudnn() -> bool {
    match Cudnn::open() {
        Ok(_) => true,
        Err(error) if on_gpu() => {
            println!("skipped on a GPU: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn widened(values: &[u16]) -> Vec<f32> {
    values.iter().map(|value| f32::from_bits(u32::from(*value) << 16)).collect()
}

/// Memory of a GPU with these values.
fn upload<T: bytemuck::Pod>(gpu: &Gpu, values: &[T]) -> Buffer {
    let buffer = Buffer::new(gpu.context(), size_of_val(values)).unwrap();
    let mut pinned = Pinned::new(gpu.context(), buffer.bytes()).unwrap();
    pinned.write(0, values);
    gpu.compute.upload(buffer.address(), &pinned, 0..buffer.bytes()).unwrap();
    gpu.compute.synchronize().unwrap();
    buffer
}

fn download<T: bytemuck::Pod>(gpu: &Gpu, buffer: &Buffer, count: usize) -> Vec<T> {
    let (mut values, pinned) = (vec![T::zeroed(); count], Pinned::new(gpu.context(), buffer.bytes()).unwrap());
    gpu.compute.download(&pinned, 0..buffer.bytes(), buffer.address()).unwrap();
    gpu.compute.synchronize().unwrap();
    pinned.read(0, &mut values);
    values
}

/// The largest difference, as a part of the largest magnitude.
fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1e-30_f32, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // a NaN is larger than all
    differences.fold(0.0, |most, next| if next <= most { most } else { next }) / scale
}

/// Output, log sums and gradient by cuDNN: twice, which must give the same bits where the engines promise it.
fn by_cudnn(
    (gpu, fused): (&Gpu, &mut FusedAttention),
    shape: AttentionShape,
    [qkv, gradient]: [&[u16]; 2],
) -> (Vec<u16>, Vec<f32>, Vec<u16>) {
    let AttentionShape { sequences, tokens, heads, size, .. } = shape;
    let (rows, width) = (sequences * tokens, heads * size);
    let [qkv, gradient] = [qkv, gradient].map(|values| upload(gpu, values));
    let (output, sums) = (upload(gpu, &vec![u16::MAX; rows * width]), upload(gpu, &vec![f32::NAN; rows * heads]));
    let into = upload(gpu, &vec![u16::MAX; qkv.bytes() / 2]);
    for pass in [Pass::Forward, Pass::Backward] {
        let bytes = fused.plan(pass, &shape).unwrap();
        let most = workspace_bytes(&shape);
        assert!(bytes <= most, "{pass:?} of {shape:?} takes {bytes} bytes, the estimate says {most}");
        let workspace = Buffer::new(gpu.context(), bytes.max(1)).unwrap();
        let operands = AttentionOperands {
            fused: qkv.address(),
            output: output.address(),
            log_sums: sums.address(),
            gradient: if pass == Pass::Forward { Address::NULL } else { gradient.address() },
            fused_gradient: if pass == Pass::Forward { Address::NULL } else { into.address() },
            workspace: workspace.address(),
        };
        fused.run(pass, &shape, &operands, gpu.compute.raw().unwrap()).unwrap();
        gpu.compute.synchronize().unwrap();
    }
    let gradients = download(gpu, &into, into.bytes() / 2);
    (download(gpu, &output, rows * width), download(gpu, &sums, rows * heads), gradients)
}

/// Outputs and gradients are within bfloat16's rounding of weights (8 bits) of the CPU's in float32; log sums are float32's.
#[test]
fn cudnns_attention_is_the_cpus() {
    child("attention::cudnns_attention_is_the_cpus", &[], || {
        if !has_cudnn() {
            return;
        }
        let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
        let (mut fused, mut random) = (FusedAttention::new(&gpu).unwrap(), Dice(11));
        let [mut same, mut all] = [0; 2];
        for (sequences, tokens, heads, groups, size) in [
            (2, 64, 2, 2, 64),
            (1, 100, 3, 3, 64),
            (2, 33, 4, 2, 128),
            (1, 130, 4, 1, 128),
            (1, 7, 6, 2, 16),
            (1, 1, 2, 2, 64),
            (1, 65, 2, 1, 8),
            (1, 40, 2, 2, 96),
        ] {
            let shape = AttentionShape { sequences, tokens, heads, groups, size };
            let reference = Shape { sequences, tokens, heads, groups, size };
            let (rows, width) = (sequences * tokens, heads * size);
            let mut draw = |count: usize, range: f32| -> Vec<u16> {
                let value = |_| rounded(((random.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * range);
                (0..count).map(value).collect()
            };
            let (qkv, gradient) = (draw(rows * reference.fused(), 1.5), draw(rows * width, 1.0));
            let found = by_cudnn((&gpu, &mut fused), shape, [&qkv, &gradient]);
            all += 1;
            same += usize::from(by_cudnn((&gpu, &mut fused), shape, [&qkv, &gradient]) == found);
            let (output, sums, gradients) = found;
            let (qkv, gradient) = (widened(&qkv), widened(&gradient));
            let (mut out, mut log_sums) = (vec![0.0; rows * width], vec![0.0; rows * heads]);
            reference::attention_forward(&mut out, &mut log_sums, &qkv, reference);
            let near = |what: &str, found: &[f32], expected: &[f32], tolerance: f32| {
                let distance = distance(found, expected);
                assert!(distance <= tolerance, "{what} of {shape:?} differ by {distance:e}");
            };
            near("outputs", &widened(&output), &out, 1e-2);
            near("log sums", &sums, &log_sums, 1e-4);
            let mut expected = vec![0.0; qkv.len()];
            let operands = reference::Attention { gradient: &gradient, qkv: &qkv, output: &out, log_sums: &log_sums };
            reference::attention_backward(&mut expected, operands, reference);
            // queries, keys and values apart: they have different magnitudes
            let (found, row) = (widened(&gradients), reference.fused());
            for (what, from, to) in [
                ("gradients of queries", 0, width),
                ("gradients of keys", width, width + groups * size),
                ("gradients of values", width + groups * size, row),
            ] {
                let part = |all: &[f32]| -> Vec<f32> {
                    all.chunks(row).flat_map(|row| row[from..to].iter().copied()).collect()
                };
                let (found, expected) = (part(&found), part(&expected));
                if tokens == 1 && from < width + groups * size && what != "gradients of values" {
                    assert!(found.iter().all(|value| value.abs() < 2e-2), "{what} of one key");
                } else {
                    near(what, &found, &expected, 2e-2);
                }
            }
        }
        println!("choice attention by cuDNN: {same} of {all} shapes give the same bits twice");
        assert!(on_gpu() || same == all);
    });
}

#[test]
fn ten_steps_with_cudnn_give_pytorchs_losses() {
    child("attention::ten_steps_with_cudnn_give_pytorchs_losses", &[("EMULATOR_JITTER", "3")], || {
        if has_cudnn() {
            take_cudnn().unwrap();
            ten_losses(Precision::Bf16, &['B'], 2e-2);
        }
    });
}

/// Llama with heads of 16 channels in bfloat16: losses of ten steps, and the gradients of the CPU. Other head sizes are refused by name.
#[test]
fn llama_with_cudnn_is_pytorchs() {
    child("attention::llama_with_cudnn_is_pytorchs", &[("EMULATOR_JITTER", "5")], || {
        if !has_cudnn() {
            return;
        }
        take_cudnn().unwrap();
        for case in crate::llama::Case::all() {
            let [batch, micro, seq] = case.sizes();
            let (parameters, data, sizes) = (case.parameters(), case.tokens(), [batch, seq, micro]);
            if case.config.head_size % 8 != 0 {
                let gpu = Arc::new(Gpu::whole(driver(), 0).unwrap());
                let stage = case.config.spec().split(1, None).unwrap().remove(0);
                let sizes = [batch / micro, seq, micro];
                let refused = StageModule::on_gpu(&gpu, &parameters, &[(0, stage)], sizes, Precision::Bf16);
                let refused = refused.map(drop).unwrap_err();
                let words = format!("a multiple of 8 channels for cuDNN's attention, found {}", case.config.head_size);
                assert!(refused.to_string().contains(&words) && Unsupported::is_behind(&refused), "{refused:#}");
                continue;
            }
            let (inputs, targets) = data.batch(0, batch, seq).unwrap();
            let (cpu_loss, cpu) = on_one_device(&parameters, (&inputs, &targets), sizes);
            let mut pipeline = Pipeline::new(&parameters, Hardware::Gpus, &[0, 1], sizes, Precision::Bf16);
            let loss = pipeline.gradients((&inputs, &targets), Order::Reversed);
            assert!((loss - cpu_loss).abs() < 5e-2, "{}: {loss}, the CPU's {cpu_loss}", case.name);
            let mut found = Parameters::zeros(&case.config).unwrap();
            pipeline.export(&mut found, Quantity::Gradients);
            for (((_, tensor), found), cpu) in case.config.spec().tensors().zip(&found.tensors).zip(&cpu.tensors) {
                let distance = relative_distance(found, cpu);
                assert!(distance < 5e-2, "{}: {} differs by {distance:e}", case.name, tensor.name);
            }
            for name in case.settings() {
                let mut pipeline = Pipeline::new(&parameters, Hardware::Gpus, &[0], sizes, Precision::Bf16);
                let (hyper, clip, is_same) = case.setting(&name);
                for (step, expected) in case.losses(&name).into_iter().enumerate() {
                    let (inputs, targets) = data.batch(if is_same { 0 } else { step }, batch, seq).unwrap();
                    let loss = pipeline.step(step as u32 + 1, (&inputs, &targets), Order::FullBackward, &hyper, clip);
                    let distance = (f64::from(loss) - expected).abs();
                    assert!(distance < 2e-2, "{} {name} {step}: {loss}, PyTorch's {expected}", case.name);
                }
            }
        }
    });
}

/// What a step takes is allocated while ops warm up, and is within the estimate.
#[test]
fn cudnns_workspace_is_in_the_estimate() {
    child("attention::cudnns_workspace_is_in_the_estimate", &[], || {
        if skipped_on_gpu("a driver deals memory out in pieces of 2 MiB, more than this model's tensors") {
            return;
        }
        let (parameters, precision) = (checkpoint(), Precision::Bf16);
        let (spec, gpu) = (parameters.config.spec(), Arc::new(Gpu::whole(driver(), 0).unwrap()));
        let stages = [(0, spec.split(1, None).unwrap().remove(0))];
        let taken = || {
            let before = gpu.memory().unwrap().0;
            let shard = StageModule::on_gpu(&gpu, &parameters, &stages, [8, 64, 1], precision).unwrap();
            let after = gpu.memory().unwrap().0;
            drop(shard);
            before - after
        };
        let demand = |attention_workspace| Demand {
            sequences: 8,
            tokens: 64,
            microbatches: 1,
            in_flight: 1,
            precision,
            sharing: Sharing::NONE,
            attention_workspace,
        };
        let own = taken();
        take_cudnn().unwrap();
        let micro = MicroBatch { sequences: 8, tokens: 64 };
        let workspace = attention_workspace(&parameters.config, micro, precision, 1, false).unwrap();
        let more =
            bytes_needed(&spec, &stages, &demand(workspace)).total() - bytes_needed(&spec, &stages, &demand(0)).total();
        let by_cudnn = taken();
        assert!(workspace > 0 && more == workspace);
        assert!(by_cudnn > own / 2 && by_cudnn <= own + workspace, "{by_cudnn} bytes, {own} without, and {workspace}");
    });
}
