//! The question that a job asks: the same settings that a user would give.

use pipesim_answer::question::{self, Question, Silent, StageSplit};
use pipesim_answer::resolve::Host;
use pipesim_frameworks::{Facts, Framework, ObjectionKind};
use pipesim_jobs::{Job, JobError, Missing, NotModelled, Reading};
use pipesim_models::hardware::{Hardware, STACKS};
use pipesim_models::layout::{ParallelConfig, Precision, Recompute, Zero};
use pipesim_models::model_spec::transformer::Config;
use pipesim_models::model_spec::{StageLayout, StagePieces};
use serde_json::Value;

/// Hardware whose rules hold for a job without any.
const USUAL_HARDWARE: &str = "h100-sxm";

/// The stack of each framework that has one of another name; the others have one of their own name.
const STACK_OF: [(&str, &str); 3] =
    [("zero-bubble", "megatron-zb"), ("deepspeed", "megatron-deepspeed"), ("pytorch", "fsdp")];

/// Completes a job with what follows from all that it says: its question, what its framework refuses on `hardware` (a name or file;
/// `None`: an H100), and what is assumed.
///
/// # Errors
/// The number of GPUs is missing, or sizes are none of a model.
pub fn complete(job: &mut Job, hardware: Option<&str>, host: &'static dyn Host) -> Result<Question, JobError> {
    let question = question(job)?;
    let machine = question::hardware(hardware.unwrap_or(USUAL_HARDWARE), host);
    let model = question.model.as_deref().map(|name| question::model(name, question.seq, host, &Silent));
    if let (Some(Ok(model)), Ok(machine)) = (model, machine) {
        job.refused = refused(job, &question, &model, &machine);
    }
    Ok(question)
}

/// Returns what is asked of all layouts of a job's GPUs: a search chooses the rest.
pub fn of_all_layouts(question: &Question) -> Question {
    let gpus = question.stages[0] * question.tp[0] * question.dp[0] * question.cp;
    Question {
        model: question.model.clone(),
        stack: question.stack.clone(),
        framework_version: question.framework_version.clone(),
        batch: question.batch,
        seq: question.seq,
        precision: question.precision,
        attention: question.attention,
        gpus: vec![gpus],
        ..Question::default()
    }
}

/// Returns what is asked of the schedule of a job alone.
pub fn of_schedule(job: &Job, question: &Question) -> Question {
    Question {
        stages: question.stages.clone(),
        micro: vec![job.reading.num_microbatches.unwrap_or(1)],
        chunks: job.reading.vp.filter(|&chunks| chunks > 1 && question.schedule != ["1f1b"]),
        schedule: question.schedule.clone(),
        set: question.set.clone(),
        ..Question::default()
    }
}

fn question(job: &mut Job) -> Result<Question, JobError> {
    let wrong = |why: String| JobError::File { place: job.files.first().cloned().unwrap_or_default(), why };
    let model = job.trained_model().map_err(wrong)?;
    if let Some(model) = &model {
        job.assumed.extend(model.assumed.clone());
    }
    let mut not_modelled = Vec::new();
    let read = &job.reading;
    if job.measured.is_some() && read.layers.is_none() && read.tp.is_none() && job.model.is_none() {
        let found = if job.framework.starts_with("megatron") { "Megatron's training log" } else { "a log" };
        return Err(wrong(format!(
            "expected a log that begins with the arguments of its job, found {found} without; give the script with `job`, and the log \
             with `measured`"
        )));
    }
    let sizes = [read.tp, read.pp, read.cp].into_iter().flatten().try_fold(1u32, u32::checked_mul).unwrap_or(0);
    if let Some(world) = read.world.filter(|world| sizes == 0 || world % sizes != 0) {
        let why =
            format!("expected a multiple of tp · pp · cp GPUs, found {world}; choose another number or other sizes");
        return Err(wrong(why));
    }
    let pipelines = read.dp.zip(read.micro_batch).and_then(|(dp, size)| dp.checked_mul(size)).filter(|&size| size > 0);
    if let Some((batch, size)) = read.global_batch.zip(pipelines).filter(|(batch, size)| batch % size != 0) {
        return Err(wrong(format!(
            "expected a batch of a multiple of dp · micro-batch size = {size} sequences, found {batch}; change one, or the GPUs"
        )));
    }
    let dp = read.dp.ok_or_else(|| JobError::Missing(vec![Missing::World]))?;
    let pp = read.pp.unwrap_or(1);
    let mut question = Question {
        stages: vec![pp],
        chunks: read.vp.filter(|&chunks| chunks > 1),
        model: model.map(|model| model.setting),
        stack: stack(job),
        framework_version: job.framework_version.clone(),
        tp: vec![read.tp.unwrap_or(1)],
        dp: vec![dp],
        cp: read.cp.unwrap_or(1),
        ep: read.ep.unwrap_or(1),
        etp: read.etp,
        batch: read.global_batch,
        micro: read.num_microbatches.filter(|_| read.global_batch.is_none()).into_iter().collect(),
        micro_batch_size: read.micro_batch.into_iter().collect(),
        seq: read.seq.unwrap_or(1024),
        precision: read.precision.as_deref().map_or(Precision::Bf16, precision),
        recompute: recompute(read, &mut not_modelled),
        zero: zero(read),
        sequence_parallel: read.sequence_parallel.unwrap_or(false),
        layout: split(read).map_err(wrong)?,
        ..Question::default()
    };
    question = with_further(question, job).map_err(wrong)?;
    question.schedule = vec![schedule(job, &question, &mut not_modelled)];
    if question.moe_overlap && question.schedule[0] != "interleaved-overlap" {
        (question.moe_overlap, question.delay_wgrad) = (false, false);
        let changes =
            "hides exchanges of experts behind other layers; without virtual stages they are taken as exposed";
        not_modelled.push(NotModelled {
            option: "the overlap of experts' exchanges".to_string(),
            changes: changes.to_string(),
        });
    }
    let says_stages = matches!(question.layout, Some(StageSplit::Stages(_)));
    question.chunks = question.chunks.filter(|_| !says_stages);
    job.not_modelled.extend(not_modelled);
    Ok(question)
}

fn stack(job: &Job) -> String {
    let name = job.stack.as_deref().unwrap_or(&job.framework);
    let of = STACK_OF.iter().find(|(framework, _)| *framework == name).map_or(name, |(_, stack)| stack);
    if STACKS.contains(&of) { of.to_string() } else { STACKS[0].to_string() }
}

fn precision(text: &str) -> Precision {
    match text {
        "fp16" => Precision::Fp16,
        "fp32" => Precision::Fp32,
        _ if text.contains("mxfp8") => Precision::Mxfp8,
        _ if text.contains("fp4") => Precision::Nvfp4,
        _ if text.contains("fp8") => Precision::Fp8,
        _ => Precision::Bf16,
    }
}

/// Returns what is sharded. FSDP that keeps gathered weights until the backward, as torchtitan does in pipelines, is ZeRO-2.
fn zero(read: &Reading) -> Zero {
    let keeps_weights = match read.reshard.as_deref() {
        Some("never") => true,
        Some("default") => read.pp > Some(1),
        _ => false,
    };
    match read.zero {
        Some(3) if keeps_weights => Zero::Gradients,
        Some(1) => Zero::Optimizer,
        Some(2) => Zero::Gradients,
        Some(3) => Zero::Weights,
        _ => Zero::None,
    }
}

/// Returns what is recomputed.
fn recompute(read: &Reading, not_modelled: &mut Vec<NotModelled>) -> Recompute {
    let Some(what) = read.recompute.as_deref() else { return Recompute::None };
    let of_layers = match (what, read.recompute_method.as_deref(), read.recompute_layers) {
        ("full" | "selective", Some(method), Some(layers)) => format!("{method}:{layers}").parse(),
        ("core_attn" | "selective", ..) => Ok(Recompute::Selective),
        _ => what.parse(),
    };
    of_layers.unwrap_or_else(|_| {
        let changes = "recomputes parts that are not modelled; nothing is taken as recomputed".to_string();
        not_modelled.push(NotModelled { option: format!("recompute {what}"), changes });
        Recompute::None
    })
}

/// Returns what each stage holds, if the job does not split its layers evenly.
fn split(read: &Reading) -> Result<Option<StageSplit>, String> {
    if let Some(text) = &read.layout {
        return text.trim_matches('\'').parse().map(Some);
    }
    let (Some(layers), pp) = (read.layers, read.pp.unwrap_or(1) as usize) else { return Ok(None) };
    let chunks = read.vp.unwrap_or(1).max(1) as usize;
    let [embedding, loss] = read.account_for.unwrap_or_default();
    let of_ranks = match read.first_last_layers {
        _ if pp < 2 => return Ok(None),
        Some([first, last]) => uneven(layers as usize, pp, [first, last])?,
        None if embedding || loss => {
            let all = layers as usize + usize::from(embedding) + usize::from(loss);
            vec![all / pp; pp]
        }
        None => return Ok(None),
    };
    let stages = pp * chunks;
    let pieces = (0..stages).map(|stage| {
        let (is_first, is_last) = (stage == 0, stage + 1 == stages);
        let less = if read.first_last_layers.is_some() {
            0
        } else {
            usize::from(is_first && embedding) + usize::from(is_last && loss)
        };
        StagePieces {
            embedding: is_first,
            layers: (of_ranks[stage % pp] / chunks).saturating_sub(less),
            predictions: if is_last { read.mtp_layers.unwrap_or(0) as usize } else { 0 },
            head: is_last,
        }
    });
    Ok(Some(StageSplit::Stages(StageLayout { stages: pieces.collect(), letters: None })))
}

/// Returns the layers of each pipeline rank: those of the first and the last are given, the others share the rest.
fn uneven(layers: usize, pp: usize, [first, last]: [Option<u32>; 2]) -> Result<Vec<usize>, String> {
    let given = [first, last].into_iter().flatten().map(|count| count as usize);
    let (ranks, taken) = (given.clone().count(), given.sum::<usize>());
    let left = layers.checked_sub(taken);
    let each = left.and_then(|left| if pp == ranks { Some(0) } else { left.checked_div(pp - ranks) });
    let each = each.ok_or_else(|| {
        format!(
            "expected at most the model's {layers} layers in the first and the last stage, found {taken}; correct one"
        )
    })?;
    let of = |rank: usize| match (first, last) {
        (Some(first), _) if rank == 0 => first as usize,
        (_, Some(last)) if rank + 1 == pp => last as usize,
        _ => each,
    };
    Ok((0..pp).map(of).collect())
}

/// Adds the further settings of a job, which are named and written as in a question's file.
fn with_further(question: Question, job: &Job) -> Result<Question, String> {
    let Ok(Value::Object(mut settings)) = serde_json::to_value(&question) else { return Ok(question) };
    for (name, text) in &job.further {
        let value = match settings.get(name) {
            Some(Value::Bool(_)) => Value::Bool(text == "true"),
            Some(Value::Array(_)) => Value::Array(vec![Value::from(text.as_str())]),
            Some(Value::Number(number)) if number.is_f64() => text.parse::<f64>().map_or(Value::Null, Value::from),
            _ => text.parse::<u64>().map_or_else(|_| Value::from(text.as_str()), Value::from),
        };
        settings.insert(name.clone(), value);
    }
    serde_json::from_value(Value::Object(settings)).map_err(|error| error.to_string())
}

/// Returns the schedule that the framework runs: by its own word, or as the layout decides.
fn schedule(job: &Job, question: &Question, not_modelled: &mut Vec<NotModelled>) -> String {
    let chunks = match &question.layout {
        Some(StageSplit::Stages(layout)) => layout.chunks(question.stages[0]).unwrap_or(1),
        _ => question.chunks.unwrap_or(1),
    };
    let usual = match (question.moe_overlap, question.stages[0] > 1 && chunks > 1) {
        (true, true) => "interleaved-overlap",
        (false, true) => "interleaved-1f1b",
        _ => "1f1b",
    };
    let Some(word) = job.reading.schedule.as_deref() else { return usual.to_string() };
    let framework = Framework::find(&job.framework, job.framework_version.as_deref());
    let is_it = |own: &str| own == word || own.strip_prefix("Schedule") == Some(word);
    let known = framework.ok().and_then(|framework| framework.schedules().find(|(_, own)| is_it(own)));
    match known {
        _ if question.stages[0] == 1 => "1f1b".to_string(),
        Some((name, _)) => name.to_string(),
        None => {
            let changes = format!("is a schedule that is not known; {usual} is taken");
            not_modelled.push(NotModelled { option: word.to_string(), changes });
            usual.to_string()
        }
    }
}

/// Rules that a layout of its own would satisfy, which a job has or has not.
const UNEVEN: [&str; 3] = ["uneven-layers", "uneven-devices", "uneven-chunks"];

/// Returns what the framework itself would refuse, in its own words.
fn refused(job: &Job, question: &Question, model: &Config, hardware: &Hardware) -> Vec<String> {
    let Ok(framework) = Framework::find(&job.framework, job.framework_version.as_deref()) else { return Vec::new() };
    let read = &job.reading;
    let layout = ParallelConfig {
        pp: question.stages[0],
        chunks: read.vp.unwrap_or(1),
        tp: question.tp[0],
        cp: question.cp,
        dp: question.dp[0],
        micro_batch_size: read.micro_batch.unwrap_or(1),
        micro: read.num_microbatches.unwrap_or(1),
        sequence: question.seq,
        precision: question.precision,
        recompute: question.recompute,
        zero: question.zero,
        shard: question.shard,
        sequence_parallel: question.sequence_parallel,
        ep: question.ep,
        etp: question.etp.unwrap_or(1),
        dispatcher: question.dispatcher,
        routing: question.routing,
        cuda_graph: question.cuda_graph,
        moe_overlap: question.moe_overlap,
        delay_wgrad: question.delay_wgrad,
        ..ParallelConfig::default()
    };
    let mut facts = Facts::default();
    let schedule = question.schedule.first().map(String::as_str);
    facts.add_layout(&layout, schedule).add_model(model).add_hardware(hardware);
    if let Some(StageSplit::Stages(stages)) = &question.layout {
        facts.add_stages(stages, true);
    }
    if let Some(batch) = read.global_batch {
        facts.set("batch", batch);
    }
    if let Some(world) = read.world {
        facts.set("world", world);
    }
    let mut all = framework.objections(&facts).unwrap_or_default();
    let is_split = question.layout.is_some();
    all.retain(|one| one.kind == ObjectionKind::Refused || !is_split && UNEVEN.contains(&one.rule.as_str()));
    all.into_iter().map(|one| one.error).collect()
}
