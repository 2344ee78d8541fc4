//! CUDA graphs of a device's ops: they are found by everything that they do, and change no bit.

use super::*;

/// Numbers of the arrays that kernels add.
const COUNT: usize = 1000;

/// A graph adds to the addresses, and as many numbers, that it was captured with. So one that was launched for other arguments would
/// show in the sums.
#[test]
fn a_graph_is_launched_only_where_every_address_and_number_is_the_same() {
    child("graphs::a_graph_is_launched_only_where_every_address_and_number_is_the_same", &[], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let kernels = Kernels::load(gpu.context(), gpu.facts(), Precision::F32, None).unwrap();
        let mut pinned = Pinned::new(gpu.context(), 4 * COUNT).unwrap();
        let mut filled = |value: f32| {
            let buffer = Buffer::new(gpu.context(), 4 * COUNT).unwrap();
            pinned.write(0, &[value; COUNT]);
            gpu.compute.upload(buffer.address(), &pinned, 0..4 * COUNT).unwrap();
            gpu.compute.synchronize().unwrap();
            buffer
        };
        let [first, second, one, two] = [0.0, 0.0, 1.0, 2.0].map(&mut filled);
        let told = GraphUse::default();
        let mut graphs = Graphs::new((0, 0), &told);
        // returns how many launches this took, and how many graphs were captured so far
        let mut add_twice = |out: &Buffer, other: &Buffer, count: usize| {
            gpu.compute.begin_step(&mut graphs);
            let arguments =
                [Argument::Address(out.address()), Argument::Address(other.address()), Argument::Size(count)];
            let add = || kernels.launch(&gpu.compute, "add", kernel::add(Precision::F32, COUNT), &arguments);
            gpu.compute.collecting(&mut graphs, || add().and_then(|()| add())).unwrap();
            let counts = told.lock().unwrap()[&(0, 0)];
            assert_eq!((counts.calls, counts.refused), (2, 0));
            (counts.launches, counts.captured)
        };
        assert_eq!(add_twice(&first, &one, COUNT), (2, 0), "one by one");
        assert_eq!(add_twice(&first, &one, COUNT), (2, 0), "one by one, captured before the next step");
        assert_eq!(add_twice(&first, &one, COUNT), (1, 1), "a graph");
        assert_eq!(add_twice(&second, &one, COUNT), (2, 1), "another address of the result");
        assert_eq!(add_twice(&first, &two, COUNT), (2, 1), "another address of an operand");
        assert_eq!(add_twice(&first, &one, COUNT / 2), (2, 1), "another number");
        assert_eq!(add_twice(&first, &one, COUNT), (1, 1), "the first again");
        for _ in 0..3 {
            add_twice(&second, &two, COUNT);
        }
        let sums = |buffer: &Buffer| {
            let mut values = vec![0.0_f32; COUNT];
            gpu.compute.download(&pinned, 0..4 * COUNT, buffer.address()).unwrap();
            gpu.compute.synchronize().unwrap();
            pinned.read(0, &mut values);
            values
        };
        let halves = |[low, high]: [f32; 2]| [[low; COUNT / 2], [high; COUNT / 2]].concat();
        assert_eq!((sums(&first), sums(&second)), (halves([14.0, 12.0]), halves([14.0, 14.0])));
    });
}

/// A list that no step repeats is forgotten after two steps, a graph after 64.
#[test]
fn what_does_not_come_again_is_forgotten() {
    child("graphs::what_does_not_come_again_is_forgotten", &[], || {
        let gpu = Gpu::whole(driver(), 0).unwrap();
        let buffer = Buffer::new(gpu.context(), 64).unwrap();
        let told = GraphUse::default();
        let mut graphs = Graphs::new((0, 0), &told);
        let mut clear_after = |steps: usize| {
            (0..steps).for_each(|_| gpu.compute.begin_step(&mut graphs));
            let clear = || Ok(gpu.compute.clear(buffer.address(), 64)?);
            gpu.compute.collecting(&mut graphs, || clear().and_then(|()| clear())).unwrap();
            told.lock().unwrap()[&(0, 0)].launches
        };
        let found = [1, 3, 2, 64, 65, 1].map(&mut clear_after);
        assert_eq!(found, [2, 2, 2, 1, 2, 2]);
        gpu.compute.synchronize().unwrap();
    });
}

/// Three steps of two micro-batches, without and with graphs: the losses of each, and parameters and gradients at the end.
#[test]
fn graphs_change_no_bit() {
    child("graphs::graphs_change_no_bit", &[("EMULATOR_JITTER", "5")], || {
        let state = debug_state();
        for precision in [Precision::F32, Precision::Bf16] {
            let steps = |told: Option<&GraphUse>| {
                let (mut module, mut marks) = whole_model(precision);
                told.into_iter().for_each(|told| module.use_graphs(Graphs::new((0, 0), told)));
                let mut losses = Vec::new();
                for number in 1..=3 {
                    module.zero_gradients().unwrap();
                    module.begin(&state.inputs, &state.targets).unwrap();
                    marks.clear();
                    for op in (0..2).flat_map(|k| [Kind::F, Kind::B].map(|kind| Op::new(kind, 0, k))) {
                        module.enqueue(op, None, None, &mut marks).unwrap();
                    }
                    module.update(number, &AdamW::default(), 1.0).unwrap();
                    losses.extend(module.losses().unwrap());
                }
                let timings = marks.timings().unwrap().len();
                let export = |module: &mut StageModule<Cuda>, what| {
                    let mut all = Parameters::zeros(&checkpoint().config).unwrap();
                    module.export(&mut all, what).unwrap();
                    all.tensors
                };
                let tensors = [Quantity::Values, Quantity::Gradients].map(|what| export(&mut module, what));
                (losses, tensors, timings)
            };
            let told = GraphUse::default();
            let (expected, found) = (steps(None), steps(Some(&told)));
            assert!(expected == found, "{precision:?}: {:?}, {:?}", expected.0, found.0);
            let counts = told.lock().unwrap()[&(0, 0)];
            println!("kernel graphs of a step, {}: {counts:?}", precision.name());
            assert!(counts.refused == 0 && 4 * counts.launches < counts.calls, "{counts:?}");
        }
    });
}
