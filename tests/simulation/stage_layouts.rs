//! Strings that say what each stage holds: Megatron's and torchtitan's own results, and costs that follow from them.

use crate::support::golden_json;
use pipesim::costs::Estimate;
use pipesim::models::{MIXTURE, PREDICTION, StageLayout, StagePieces, model_costs, transformer_named};
use pipesim::{Costs, GivenCosts, ParallelConfig, Selection, Zero};
use serde_json::Value;

fn letters(stage: &StagePieces) -> String {
    let letter = |letter: &str, count: usize| letter.repeat(count);
    let ends = [letter("E", stage.embedding.into()), letter("L", stage.head.into())];
    format!("{}{}{}{}", ends[0], letter("t", stage.layers), letter("m", stage.predictions), ends[1])
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// Megatron-LM's parser read or refused these strings.
#[test]
fn strings_are_read_as_megatron_reads_them() {
    let golden = golden_json("slices/layouts.json");
    let cases = golden["cases"].as_array().unwrap();
    let mut refused = 0;
    for case in cases {
        let (text, devices) = (case["layout"].as_str().unwrap(), size(&case["p"]) as u32);
        let read = StageLayout::parse(text)
            .and_then(|layout| layout.check(devices, size(&case["layers"]), size(&case["mtp"])).map(|()| layout));
        match (read, case["refused"].as_str()) {
            (Ok(layout), None) => {
                let stages: Vec<String> = layout.stages.iter().map(letters).collect();
                let expected: Vec<&str> =
                    case["stages"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
                assert_eq!(stages, expected, "{text}");
                assert_eq!(layout.chunks(devices), Ok(size(&case["v"]) as u32), "{text}");
                // what is printed is read as the same
                assert_eq!(StageLayout::parse(&layout.to_string()), Ok(layout), "{text}");
            }
            (Err(error), Some(_)) => {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
            (found, expected) => panic!("{text}: {found:?} {expected:?}"),
        }
    }
    assert_eq!((cases.len(), refused), (16, 9));
}

/// torchtitan's automatic splits.
#[test]
fn layers_are_split_as_torchtitan_splits_them() {
    let golden = golden_json("slices/layouts.json");
    for case in golden["torchtitan"].as_array().unwrap() {
        let less = ["input_weight", "output_weight"].map(|key| size(&case[key]));
        let found = StageLayout::torchtitan(size(&case["stages"]), size(&case["layers"]), less);
        let Some(expected) = case["layers_of_stage"].as_array() else {
            assert!(found.is_err() && case["refused"].is_string(), "{case}");
            continue;
        };
        let layout = found.unwrap();
        let layers: Vec<usize> = layout.stages.iter().map(|stage| stage.layers).collect();
        assert_eq!(layers, expected.iter().map(|stage| stage.as_array().unwrap().len()).collect::<Vec<_>>(), "{case}");
        // and as its lists of modules
        let with = case["with"].as_array().unwrap().iter().zip(expected);
        let modules: Vec<Vec<String>> = with
            .map(|(with, layers)| {
                let beside: Vec<String> =
                    with.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_string()).collect();
                let layers = layers.as_array().unwrap().iter().map(|layer| format!("layers.{layer}"));
                let (first, last): (Vec<_>, Vec<_>) = beside.into_iter().partition(|name| name == "tok_embeddings");
                first.into_iter().chain(layers).chain(last).collect()
            })
            .collect();
        assert_eq!(StageLayout::parse(&serde_json::to_string(&modules).unwrap()), Ok(layout), "{case}");
    }
}

#[test]
fn rejections_name_the_column() {
    let list = r#"[["embedding","decoder"],["decoder","loss"]]"#;
    assert_eq!(StageLayout::parse(list).unwrap().to_string(), "Et|tL");
    for (text, expected) in [
        ("Ett|tt|(t|tL", "column 8: '(' without ')*n'; groups do not nest"),
        ("((t|)*2)*2L", "column 2: '('"),
        ("Et|t)|L", "column 5: ')'"),
        ("Et*2*2|L", "column 5: expected one '*n'"),
        ("E t|L", "column 2: expected E, t, m, L"),
        ("Et|tx|L", "column 5: "),
        ("Et|tLL", "column 6: expected one L, found a second"),
        ("tE|L", "column 2: expected the embedding before layers"),
        ("t|EL", "column 3: expected the embedding before layers"),
        ("Et|L|t", "column 6: expected layers before the head"),
        ("Et|m|t|L", "column 6: expected layers before layers for multi-token prediction"),
        ("t|L", "expected one embedding, 'E', first, found 0"),
        ("E|EL", "column 3: expected one E, found a second"),
        ("Et|t", "expected one head with the loss, 'L', last, found 0"),
        ("Et*99999999999999999999L", "column 2: expected at most"),
        ("", "expected one embedding"),
        ("[[\"embedding\",\"layers.1\"],[\"loss\"]]", "stage 0: expected layers.0 next, found layers.1"),
        ("[[\"embedding\",\"rope\"],[\"loss\"]]", "found 'rope'"),
        ("[[\"embedding\",\"norm\"],[\"loss\"]]", "stage 0: expected norm in the stage of lm_head"),
        ("[1]", "expected a list of stages"),
    ] {
        let error = StageLayout::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
    for (text, devices, layers, predictions, expected) in [
        ("Et|tL", 3, 2, 0, "a multiple of `stages` 3, found 2"),
        ("Et|tL", 2, 3, 0, "the model's 3 layers, found 2 't'"),
        ("Et|tL", 2, 2, 1, "found 0 'm'"),
        ("Et|tm|mL", 3, 2, 2, "all 'm' in one stage"),
        ("Etm|L|||", 5, 1, 1, ""),
        ("Et|tm|L||", 1, 2, 1, "'m' in the last stage of its device, found it in stage 1 of 5"),
    ] {
        let found = StageLayout::parse(text).unwrap().check(devices, layers, predictions);
        match expected {
            "" => assert_eq!(found, Ok(()), "{text}"),
            _ => assert!(found.as_ref().unwrap_err().to_string().contains(expected), "{text}: {found:?}"),
        }
    }
}

fn layout(text: &str, pp: u32, chunks: u32) -> ParallelConfig {
    let layout = Some(StageLayout::parse(text).unwrap());
    ParallelConfig { pp, chunks, micro: 8, sequence: 4096, layout, zero: Zero::Optimizer, ..ParallelConfig::default() }
}

/// An empty stage computes nothing, but its messages remain; a layout that is the usual split changes nothing.
#[test]
fn stages_cost_what_they_hold() {
    let of = |layout: ParallelConfig| model_costs("llama-3-8b", "h100-sxm", layout).unwrap();
    let empty = of(layout("Et*16||t*16|L", 4, 1));
    let stages = empty.stages(4).unwrap();
    let times: Vec<f64> = stages.iter().map(|stage| empty.passes(stage).forward.total()).collect();
    assert_eq!(times[1], 0.0);
    assert!(times[0] > times[3] && times[3] > 0.0, "{times:?}");
    let estimate = empty.estimate("1f1b").unwrap();
    assert_eq!(estimate.layers, [16, 0, 16, 0]);
    let usual = ParallelConfig { layout: None, ..layout("EL", 4, 1) };
    let [named, same] = [layout("Et*8|t*8|t*8|t*8L", 4, 1), usual].map(|layout| of(layout).estimate("1f1b").unwrap());
    assert_eq!(named, same);
    assert!(estimate.iteration_s > named.iteration_s);
    let wrong = of(layout("Et*8|t*8|t*8|t*8L", 2, 2)).stages(2).unwrap_err().to_string();
    assert!(wrong.contains("4 stages of `layout`") && wrong.contains("schedule with 2"), "{wrong}");
}

/// DeepSeek-V3's layout on 16 devices: three dense layers in front, multi-token prediction on the last but one.
#[test]
fn layers_of_each_kind_are_where_the_string_puts_them() {
    let spec = transformer_named("deepseek-v3").unwrap().spec();
    let stages = spec.arranged(&StageLayout::parse("Et*3|(tt|)*29,m|L").unwrap()).unwrap();
    assert_eq!(stages.len(), 32);
    assert_eq!((stages[0].layers(), stages[0].count(MIXTURE)), (3, 0));
    assert!(stages[1..30].iter().all(|stage| stage.count(MIXTURE) == 2 && stage.layers() == 2));
    assert_eq!((stages[30].count(PREDICTION), stages[31].layers(), stages[31].count(PREDICTION)), (1, 0, 0));
    // kinds that alternate
    let maverick = transformer_named("llama-4-maverick").unwrap().spec();
    let stages = maverick.split(16, None).unwrap();
    let mixtures = |stage: &pipesim::models::Stage| {
        stage.counts().filter(|(name, _)| name.contains("mixture")).map(|(_, count)| count).sum::<usize>()
    };
    assert_eq!(stages.iter().map(mixtures).sum::<usize>(), 24);
    assert!(stages.iter().all(|stage| stage.layers() == 3 && (1..=2).contains(&mixtures(stage))));
}

/// The predicted makespan of a schedule with these costs under a layout.
fn makespan(name: &str, [p, m]: [u32; 2], chunks: Option<u32>, costs: &str, layout: &str) -> f64 {
    let layout = StageLayout::parse(layout).unwrap();
    let costs = Costs::given(costs.parse::<GivenCosts>().unwrap()).with_layout(Some(layout));
    let resolved = Selection { chunks, ..Selection::new(p, m) }.resolve(name, &costs).unwrap();
    resolved.predict().unwrap().metrics().makespan
}

/// Every schedule takes a layout, in its own placement: equal stages give the makespan without one, and an empty stage one of a shorter
/// pipeline with its messages.
#[test]
fn every_schedule_takes_a_layout() {
    let costs = "F=3,I=4,W=2,comm=0.5";
    // searches take long in tests, and see a layout only as costs
    let searched = ["zb-1p", "zb-2p", "zb-v-greedy", "v-zb", "v-half", "v-min", "1f1b-v"];
    let mut tried = 0;
    for name in pipesim::schedules::names().into_iter().filter(|name| !searched.contains(name)) {
        let Ok(found) = Selection::new(4, 8).resolve(name, &Costs::given(costs.parse().unwrap())) else { continue };
        let (stages, plain) = (found.graph.schedule().placement.stages() as usize, found.predict().unwrap());
        let equal = format!("Et|{}tL", "t|".repeat(stages - 2));
        assert_eq!(makespan(name, [4, 8], None, costs, &equal), plain.metrics().makespan, "{name}");
        // the same work in fewer stages: an empty one passes tensors through
        let uneven = format!("Ett||{}tL", "t|".repeat(stages - 3));
        let layout = StageLayout::parse(&uneven).unwrap();
        let arranged = Costs::given(costs.parse::<GivenCosts>().unwrap()).with_layout(Some(layout));
        let resolved = Selection::new(4, 8).resolve(name, &arranged).unwrap();
        let times = resolved.predict().unwrap().op_times();
        let ops = resolved.graph.schedule().ops();
        let lasting = |stage: u32| {
            ops.iter()
                .enumerate()
                .filter(move |(_, op)| op.stage() == stage && "FIWB".contains(op.kind().letter()))
                .map(|(index, _)| times.duration(index))
        };
        assert!(lasting(1).all(|ticks| ticks == 0) && lasting(0).all(|ticks| ticks > 0), "{name}");
        tried += 1;
    }
    assert!(tried >= 16, "{tried}");
}

/// Costs per kind of layer, by hand: 2 devices, one micro-batch forward and backward, B = 2 F.
#[test]
fn costs_follow_the_kinds_of_layers() {
    let of = |costs: &str, layout: &str| makespan("gpipe", [2, 1], None, costs, layout);
    // 6 t on two devices: a device's share is 3 t, so a t takes 1
    assert_eq!(of("F=3", "Et*4|ttL"), 3.0 * 6.0);
    // E 0.5, L 1.5: 8 on two devices, F = 4 per device
    let costs = "F=4,embedding=0.5,loss=1.5";
    let unequal = makespan("gpipe", [2, 2], None, costs, "Et*4|ttL");
    // stages of 4.5 and 3.5: two forwards on the first, one on the second, and back
    assert!((unequal - 3.0 * (4.5 * 2.0 + 3.5)).abs() < 1e-9, "{unequal}");
    let per_layer = Costs::given("F=2,mtp=3".parse::<GivenCosts>().unwrap().per(pipesim::costs::Per::Layer));
    let layout = StageLayout::parse("Ett|tm|L|").unwrap();
    let found = Selection::new(4, 1).resolve("gpipe", &per_layer.with_layout(Some(layout))).unwrap();
    assert_eq!(found.predict().unwrap().metrics().makespan, 3.0 * 2.0 * (3.0 + 3.0));
    let wrong = Costs::default().with_layout(Some(StageLayout::parse("Et|tL").unwrap()));
    let error = Selection::new(4, 1).resolve("gpipe", &wrong).unwrap_err().to_string();
    assert!(error.contains("expected the 2 stages of `layout`, found a schedule with 4"), "{error}");
}

/// What is written is short, read as the same, and as torchtitan's modules.
#[test]
fn layouts_are_written_as_they_are_read() {
    for (text, written) in [
        ("Et*3|(tt|)*29,m|L", "Ettt|(tt|)*29m|L"),
        ("Et|t|t|t|t|tL", "Et|(t|)*4tL"),
        ("Et|t|t|t|t|t|L", "Et|(t|)*5L"),
        ("E||||t|L||||", "E||||t|L||||"),
        ("Et*12|t*12|t*12|t*12|t*12L", "Et*12|(t*12|)*3t*12L"),
    ] {
        let layout = StageLayout::parse(text).unwrap();
        assert_eq!(layout.to_string(), written);
        assert_eq!(StageLayout::parse(written), Ok(layout.clone()), "{text}");
        match layout.modules() {
            Some(modules) => {
                let list = serde_json::to_string(&modules).unwrap();
                assert_eq!(StageLayout::parse(&list), Ok(layout), "{text}");
            }
            None => assert_eq!(layout.layers()[1], 1, "{text}"),
        }
    }
    let estimate =
        model_costs("llama-3-8b", "h100-sxm", layout("Et*16||t*16|L", 4, 1)).unwrap().estimate("1f1b").unwrap();
    assert_eq!(estimate.stage_layout, "Et*16||t*16|L");
    assert_eq!(estimate.modules.unwrap()[3], ["norm", "lm_head"]);
}
