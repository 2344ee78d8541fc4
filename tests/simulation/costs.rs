//! Sources of costs: given numbers, measured files, and the split of layers.

use pipesim::costs::{Analytic, Decimal, GroupRates, Mesh, PartCost, Per, Slow, StepOp, Summary};
use pipesim::models::{BLOCK, TransformerConfig, model_costs, model_spec};
use pipesim::{CostFile, GivenCosts, Kind, MicroBatch, Op, ParallelConfig, Placement};

/// Layers of each stage of a model with so many layers.
fn layers_of_stages(layers: usize, stages: usize) -> Vec<usize> {
    let costs = model_costs("llama-3-8b", "h100-sxm", ParallelConfig::default()).unwrap();
    let model = TransformerConfig { layers, ..costs.model };
    let costs = Analytic::new(model, costs.machine, costs.layout).unwrap();
    costs.stages(stages as u32).unwrap().iter().map(|stage| stage.count(BLOCK)).collect()
}

#[test]
fn the_ends_have_one_layer_less_if_that_divides_evenly() {
    assert_eq!(layers_of_stages(12, 4), [3, 3, 3, 3]);
    assert_eq!(layers_of_stages(126, 64), [[1].as_slice(), &[2; 62], &[1]].concat()); // Llama 3 405B
    assert_eq!(layers_of_stages(30, 8), [3, 4, 4, 4, 4, 4, 4, 3]); // the zero-bubble paper's 6.2B
    assert_eq!(layers_of_stages(70, 12), [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]); // BLOOM
    for (layers, stages) in [(78, 12), (5, 4), (3, 5), (3, 4), (1, 2), (2, 3)] {
        let counts = layers_of_stages(layers, stages);
        assert_eq!((counts.iter().sum::<usize>(), counts.len()), (layers, stages));
    }
}

fn decimal(text: &str) -> Decimal {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn decimals_are_exact_and_bounded() {
    for (text, digits, scale) in [
        ("1", 1, 0),
        ("0.1", 1, 1),
        ("18.522", 18522, 3),
        ("1e3", 1000, 0),
        ("5E+2", 500, 0),
        ("1.0E-4", 1, 4),
        ("25e-2", 25, 2),
        ("0", 0, 0),
        ("-0.0", 0, 0),
        ("0e-400", 0, 0),
        (".5", 5, 1),
        ("5.", 5, 0),
        ("+2.5", 25, 1),
        ("1.50", 15, 1),
        ("0.000000000001", 1, 12),
        ("999999999999.999999999999", 999999999999999999999999, 12),
    ] {
        let number = decimal(text);
        assert_eq!((number.times_ten_to(scale), number.scale()), (Some(digits), scale), "{text}");
    }
    let refused = [
        "",
        ".",
        "-1",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "1e99",
        "1e400",
        "1e-99",
        "1e99999999999",
        "0x1",
        "1,5",
        "é",
        "e5",
    ];
    for text in refused
        .into_iter()
        .chain(["1e16", "1/0", "/", "1/", "/2", "1/2/3", "-1/2", "1 ", "1_000", "1e5.5", "--1", "+-1"])
    {
        assert!(text.parse::<Decimal>().is_err(), "{text}");
    }
}

#[test]
fn excess_digits_are_rounded() {
    for (text, meant) in [
        ("18.522000000000002", "18.522"),
        ("0.30000000000000004", "0.3"),
        ("1.0000000000000002", "1"),
        ("0.9999999999999999", "1"),
        ("2.7755575615628914e-17", "0.000000000000000027755576"),
        ("1.3333333333333333", "4/3"),
        ("0.3333333333333333", "1/3"),
        ("1.8522000000000002e-05", "0.000018522"),
        ("123456789.12345678912345", "123456789.123456789123"),
        ("3/4", "0.75"),
        ("1e-5/4e-5", ".25"),
        ("1234567890123", "1.234567890123e12"),
        ("0.366412213740458", "366412213740458e-15"),
    ] {
        assert_eq!(decimal(text), decimal(meant), "{text}");
    }
    assert_eq!(decimal("0.366412213740458").to_f64(), 0.366412213740458);
    assert!(decimal("18.522000000000002").is_short() && !decimal("4/3").is_short());
}

#[test]
fn sums_and_products_do_not_overflow() {
    let [large, small] = ["999999999999999.999999999999", "0.000000000123456789012345"].map(decimal);
    assert_eq!(decimal("1.1").plus(decimal("0.09")), decimal("1.19"));
    assert_eq!(decimal("1.5").times(decimal("0.25")), decimal("0.375"));
    assert!((large.plus(small).to_f64() / 1e15 - 1.0).abs() < 1e-12);
    assert!((large.times(small).to_f64() / 123456.789012345 - 1.0).abs() < 1e-12);
    assert!((large.times(large).to_f64() / 1e30 - 1.0).abs() < 1e-12);
    assert!((small.times(small).to_f64() / 1.5241578753238669e-20 - 1.0).abs() < 1e-4);
}

#[test]
fn the_tick_divides_every_cost() {
    let costs: GivenCosts = "F=1,I=1.1,W=0.8,comm=0.1".parse().unwrap();
    let table = costs.table(&Placement::looped("loop", 2, 3), 4, &Slow::new()).unwrap();
    let op = table.of("0B0".parse().unwrap());
    assert_eq!((op.duration, op.arrival, table.units.ticks_per_unit), (19, 3, 30.0));
    assert!("F=1,F=2".parse::<GivenCosts>().is_err());
    assert!("G=1".parse::<GivenCosts>().is_err());
    assert!("keep=1.5".parse::<GivenCosts>().is_err());
}

/// F, I, W, B and the assumptions about them.
fn completed(text: &str) -> ([f64; 4], Vec<&'static str>) {
    let costs: GivenCosts = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let Summary { F, I, W, B, .. } = costs.summary();
    ([F, I, W, B], costs.assumed().to_vec())
}

#[test]
fn missing_costs_follow_from_the_given_ones() {
    for (text, times, assumed) in [
        ("F=18.5,B=27", [18.5, 13.5, 13.5, 27.0], vec!["I = W = B/2"]),
        ("F=1,B=0.3", [1.0, 0.15, 0.15, 0.3], vec!["I = W = B/2"]),
        ("F=2", [2.0, 2.0, 2.0, 4.0], vec!["I = W = F"]),
        ("B=5", [2.5, 2.5, 2.5, 5.0], vec!["I = W = B/2", "F = I"]),
        ("F=3,B=7,I=4", [3.0, 4.0, 3.0, 7.0], vec!["W = B - I"]),
        ("F=3,B=7,W=2.5", [3.0, 4.5, 2.5, 7.0], vec!["I = B - W"]),
        ("F=3,I=4", [3.0, 4.0, 4.0, 8.0], vec!["W = I"]),
        ("W=4", [4.0, 4.0, 4.0, 8.0], vec!["I = W", "F = I"]),
        ("I=2,W=3", [2.0, 2.0, 3.0, 5.0], vec!["F = I"]),
        ("F=1,I=2,W=3,B=4", [1.0, 2.0, 3.0, 4.0], vec![]),
        ("F=1,I=2,W=3", [1.0, 2.0, 3.0, 5.0], vec![]),
        ("comm=3,keep=0.5", [1.0, 1.0, 1.0, 2.0], vec![]),
        ("comm=3ms", [1.0, 1.0, 1.0, 2.0], vec!["F = I = W = 1"]),
        ("F=2s,B=3000ms", [2.0, 1.5, 1.5, 3.0], vec!["I = W = B/2"]),
    ] {
        assert_eq!(completed(text), (times, assumed), "{text}");
    }
    assert!("F=1,B=3,I=4".parse::<GivenCosts>().is_err_and(|e| e.to_string().contains("B=3 and I=4")));
}

/// Halves of B are whole ticks that add up to B.
#[test]
fn halves_are_exact() {
    for b in ["1", "0.1", "27.000001", "0.000000000001", "4/3", "18.522000000000002"] {
        let costs: GivenCosts = format!("F=1,B={b}").parse().unwrap();
        let table = costs.table(&Placement::zigzag("V", 3, 2), 4, &Slow::new()).unwrap();
        let [i, w, whole] = ["0I0", "0W0", "0B0"].map(|op| table.of(op.parse().unwrap()).duration);
        assert!(
            i == w && i > 0 && (i + w).abs_diff(whole) <= u64::from(b.len() > 12 || b.contains('/')),
            "{i} {w} {whole}"
        );
    }
}

#[test]
fn long_numbers_are_rounded_to_the_tick() {
    let table = |text: &str, slow: &[(u32, &str)]| {
        let slow: Slow = slow.iter().map(|&(device, factor)| (device, factor.parse().unwrap())).collect();
        text.parse::<GivenCosts>().unwrap().table(&Placement::linear(4), 8, &slow)
    };
    let noisy = table("F=18.522000000000002,I=1e-3,W=5E+2", &[]).unwrap();
    assert_eq!(noisy.units.ticks_per_unit, table("F=18.522,I=0.001,W=500", &[]).unwrap().units.ticks_per_unit);
    for (text, slow) in [
        ("F=1.3333333333333333,I=1,W=0.1,comm=2.7755575615628914e-17", "1"),
        ("F=4,I=3,W=0.3", "1.1111111111111112"),
        ("F=1e-5/3", "1/3"),
        ("F=1e14,I=1/3", "2/3"),
    ] {
        let table = table(text, &[(0, slow)]).unwrap_or_else(|e| panic!("{text}: {e}"));
        let (given, slow) = (table.summary, slow.parse::<Decimal>().unwrap().to_f64());
        for (op, cost) in
            [("0F0", given.F * slow), ("1F0", given.F), ("1I0", given.I), ("1W0", given.W), ("0B0", given.B * slow)]
        {
            let found = table.of(op.parse().unwrap()).duration as f64 / table.units.ticks_per_unit;
            assert!((found - cost).abs() <= 1e-11 * given.B.max(given.F), "{text}: {op} {found}, {cost}");
        }
    }
    for text in [
        "F=999999999999,W=0.000000000001",
        "F=1e15,W=1e-12",
        "F=999999999999999,W=999999999999999,I=999999999999999,comm=1",
    ] {
        let large =
            text.parse::<GivenCosts>().and_then(|costs| costs.table(&Placement::linear(64), 1 << 20, &Slow::new()));
        assert!(large.is_err_and(|e| e.to_string().contains("overflow") || e.to_string().contains("digits")), "{text}");
    }
}

#[test]
fn other_sizes_are_scaled_or_interpolated() {
    let file = CostFile::from_json(include_str!("../fuzz/seeds/costs/plain.json")).unwrap();
    let (sequences, tokens) = (file.parts[0].sequences, file.parts[0].tokens);
    let tiny = model_spec("tiny").unwrap();
    let size = |times: usize| MicroBatch { sequences: sequences as usize * times, tokens: tokens as usize };
    assert_eq!(file.at_size(&tiny, size(1)).parts, file.parts, "measured sizes are unchanged");
    let doubled = file.at_size(&tiny, size(2));
    for part in &file.parts {
        let same =
            |other: &&PartCost| (&other.part, &other.kind, other.sequences) == (&part.part, &part.kind, 2 * sequences);
        let found = doubled.parts.iter().find(same).map(|part| part.duration_ns);
        assert_eq!(found, Some(2 * part.duration_ns), "twice the sequences are twice the work");
    }
    assert_eq!(file.at_sequences(2 * sequences).parts, doubled.parts, "with or without the model's specification");
    // also measured at four times the sequences, and cheaper there
    let mut both = file.clone();
    let cheaper =
        |part: &PartCost| PartCost { sequences: 4 * sequences, duration_ns: 3 * part.duration_ns, ..part.clone() };
    both.parts.extend(file.parts.iter().map(cheaper));
    let between = both.at_sequences(2 * sequences);
    for (part, found) in file.parts.iter().zip(&between.parts[both.parts.len()..]) {
        let expected = part.duration_ns as f64 * (1.0 + 2.0 / 3.0);
        assert!((found.duration_ns as f64 - expected).abs() <= 0.5, "on the line between both");
    }
}

#[test]
fn only_models_with_a_tied_tensor_exchange_its_gradient() {
    let tied = CostFile::from_json(include_str!("../fuzz/seeds/costs/plain.json")).unwrap();
    assert!(!serde_json::to_string(&tied).unwrap().contains("tied"), "only untied models say so");
    let untied = CostFile { tied: false, ..tied.clone() };
    assert_eq!(CostFile::from_json(&serde_json::to_string(&untied).unwrap()).unwrap(), untied);
    let (placement, stages) = (Placement::linear(2), tied.outline().split(2, None).unwrap());
    let puts = |file: &CostFile| {
        let ending = file.step_costs(&placement, &stages, false).epilogue;
        ending.nodes().iter().filter(|node| node.op == StepOp::Put).count()
    };
    assert_eq!([puts(&tied), puts(&untied)], [2, 0]);
}

/// Four replicas of two stages: puts last as measured with two, sums three times as long.
#[test]
fn replicas_sum_the_gradients_of_their_stages() {
    let mut file = CostFile::from_json(include_str!("../fuzz/seeds/costs/plain.json")).unwrap();
    assert!(!serde_json::to_string(&file).unwrap().contains("mesh"), "only meshes of several workers are written");
    file.mesh = Mesh::new(1, 4);
    file.step.stages = Some(GroupRates {
        size: 2,
        put_embedding_ns: 50,
        put_block_ns: 10,
        add_embedding_ns: 70,
        add_block_ns: 20,
        ..GroupRates::default()
    });
    let file = CostFile::from_json(&serde_json::to_string(&file).unwrap()).unwrap();
    let (placement, stages) = (Placement::linear(2), file.outline().split(2, None).unwrap());
    let costs = file.step_costs(&placement, &stages, false);
    for device in 0..2 {
        let blocks = stages[device as usize].count(BLOCK) as u64;
        let both = costs.epilogue.nodes().iter().zip(&costs.lasts).filter(|(node, _)| node.device == device);
        let own: Vec<(StepOp, u64)> = both.map(|(node, &(duration, _))| (node.op, duration)).collect();
        let names: Vec<&str> = own.iter().map(|(op, _)| op.name()).collect();
        // The tied embedding's gradient is exchanged once each replica has the same sum.
        assert_eq!(names, ["put", "reduce", "put", "reduce", "optimizer"]);
        assert_eq!([own[0].1, own[1].1], [50 + 10 * blocks, 3 * (70 + 20 * blocks)]);
    }
    let broken = serde_json::to_string(&file).unwrap().replace("\"data\":4", "\"data\":0");
    assert!(CostFile::from_json(&broken).unwrap_err().to_string().contains("expected degrees from 1"));
}

#[test]
fn each_stage_has_its_share_of_the_given_costs() {
    let placement = Placement::looped("loop", 2, 2);
    let shares = |per, layers: Option<&[usize]>| {
        let costs = GivenCosts::default().per(per).with_layers(layers.map(<[usize]>::to_vec));
        let table = costs.table(&placement, 1, &Slow::new()).ok()?;
        let share = |stage| table.of(Op::new(Kind::F, stage, 0)).duration as f64 / table.units.ticks_per_unit;
        Some([0, 1, 2, 3].map(share))
    };
    assert_eq!(shares(Per::Device, None), Some([0.5; 4]));
    assert_eq!(shares(Per::Stage, None), Some([1.0; 4]));
    assert_eq!(shares(Per::Model, None), Some([0.25; 4]));
    assert_eq!(shares(Per::Layer, Some(&[8])), Some([2.0; 4]));
    assert_eq!(shares(Per::Layer, Some(&[9])), Some([3.0, 2.0, 2.0, 2.0]));
    // the average share of a device is half of 32 layers
    for (per, of) in [(Per::Device, 16.0), (Per::Stage, 8.0), (Per::Model, 32.0)] {
        assert_eq!(shares(per, Some(&[7, 8, 8, 9])), Some([7.0, 8.0, 8.0, 9.0].map(|layers| layers / of)));
    }
    assert_eq!(shares(Per::Layer, None), None);
    assert_eq!(shares(Per::Device, Some(&[7, 8])), None);
    assert_eq!(shares(Per::Device, Some(&[3])), None, "fewer layers than stages");
}
