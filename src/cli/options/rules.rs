//! Which options go together, beyond what clap can say: an option with no effect is rejected, never ignored.

use super::costs::CostsText;
#[cfg(feature = "training")]
use super::devices::DeviceKind;
use super::output::Format;
use super::schedules::Names;
use super::values::Numbers;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use pipesim_answer::question::{MemoryCap, StageSplit};
use pipesim_cost::{Decimal, Per};
#[cfg(feature = "training")]
use pipesim_measure::training_loop::Decay;
use pipesim_report::{Output, OutputKind, TimelineRendering};
use pipesim_schedule::schedule::Overlap;
use pipesim_sim::event::Sharing;
use std::collections::BTreeSet;

/// Options that describe a training.
const TRAINING: &str = "model checkpoint blocks heads channels vocabulary max_sequence data tokenizer batch seq lr beta1 beta2 eps \
                        weight_decay clip seed repeat_batch baseline calibrate";

/// Options that describe a model on hardware.
const ON_HARDWARE: &str = "model tp dp cp batch seq compute_precision recompute zero shard optimizer_offload overlap_optimizer_offload sequence_parallel attention stack ep etp dispatcher \
                           routing cuda_graph moe_overlap delay_wgrad rounds slow_link packed lora";

/// Options, when they have an effect, and what follows the option's name in the error otherwise.
type Rule = (&'static str, fn(&GivenOptions) -> bool, &'static str);

/// Options that a checkpoint contains and that determine losses.
const SAVED: &str = "model checkpoint blocks heads channels vocabulary max_sequence tokenizer batch seq lr beta1 beta2 eps weight_decay clip \
                     seed repeat_batch lr_schedule warmup_steps min_lr held_out";

const RULES: &[Rule] = &[
    (
        "gpus",
        |g| g.verb.get_name() == "plan" || g.is_typed("job"),
        "is for a --job that does not say it; `pipesim plan --gpus` searches layouts",
    ),
    ("min_lr", |g| !g.is_rate_constant(), "is for rates that fall; give --lr-schedule linear or cosine, too"),
    (
        SAVED,
        |g| !g.is_typed("resume") || g.verb.get_name() == "plan",
        "is part of the checkpoint; leave it out, or begin another run without --resume",
    ),
    (
        "validation_batches held_out",
        |g| g.is_typed("validate_every") || g.is_typed("resume"),
        "is about validation; give --validate-every, too",
    ),
    (
        "stages micro schedule chunks set slice_lengths overlap max_ticks max_ops timeout device link slices bfloat16 products cuda_graphs cudnn steps warmup calibrate_batch machine",
        |g| !g.is_typed("from"),
        "describes a measurement, and --from takes one that is there; leave one of the two out",
    ),
    (
        TRAINING,
        |g| !g.is_typed("from"),
        "describes a training, and --from takes one that is there; leave one of the two out",
    ),
    (
        "stages micro schedule chunks set slice_lengths overlap max_ticks max_ops timeout device link slices bfloat16 products cuda_graphs cudnn layers steps warmup \
         calibrate_batch",
        |g| !g.is_typed("machine"),
        "describes a training, and --hardware measures the machine alone; leave one of the two out",
    ),
    (
        TRAINING,
        |g| !g.is_typed("machine"),
        "describes a training, and --hardware measures the machine alone; leave one of the two out",
    ),
    (
        ON_HARDWARE,
        |g| !g.has("hardware") || g.is_typed("hardware"),
        "describes a model on hardware; give that, too, as in --model llama-3-70b --hardware h100-sxm",
    ),
    (
        "micro_batch_size",
        |g| g.is_typed("hardware") || g.is_typed("profile"),
        "needs measured costs or a model on hardware; give --profile, or --model llama-3-70b --hardware h100-sxm",
    ),
    (
        "stages micro schedule chunks set slice_lengths overlap max_ticks max_ops effort costs costs_per profile slow balance hardware model save_question",
        |g| !g.is_typed("timeline"),
        "describes a prediction, and a timeline is explained as it was measured; leave one of the two out",
    ),
    (
        TRAINING,
        |g| !g.is_timed(),
        "describes a training, and timed devices train nothing; leave it out, or use another --device",
    ),
    (
        "slices bfloat16 products cuda_graphs cudnn",
        |g| !g.is_timed(),
        "is for GPUs; leave it out, or use --device cuda",
    ),
    (
        "stages",
        |g| g.verb.get_name() == "predict" || !g.has_several("stages"),
        "takes one number here; predict compares several",
    ),
    (
        "micro",
        |g| ["predict", "accuracy"].contains(&g.verb.get_name()) || !g.has_several("micro"),
        "takes one number here; predict compares several",
    ),
    (
        "tp dp micro_batch_size",
        |g| {
            g.verb.get_name() == "predict" && g.is_typed("hardware")
                || !["tp", "dp", "micro_batch_size"].iter().any(|option| g.has_several(option))
        },
        "takes one number here; predict compares several with --model and --hardware",
    ),
    (
        "costs costs_per slow",
        |g| !g.has("device") || g.is_timed(),
        "needs --device timed, or predict --costs; the speed of devices that train is measured",
    ),
    ("unit_ms", |g| g.is_timed(), "needs --device timed; the speed of devices that train is measured"),
    (
        "costs_per",
        |g| g.get("costs_per") != Some(Per::Layer) || g.is_typed("layers"),
        "layer needs the number of layers; give it, as in --layers 32",
    ),
    (
        "unit_ms",
        |g| g.get::<CostsText>("costs").is_none_or(|costs| costs.unit().is_none()),
        "is the length of a unit of --costs, and these already have a unit of time; leave it out",
    ),
    (
        "layers",
        |g| {
            let has_costs = ["profile", "costs", "costs_per", "hardware", "timeline", "from"]
                .iter()
                .any(|option| g.is_typed(option));
            has_costs || g.has("data") && !g.is_timed()
        },
        "splits a model; give its costs with --profile, --costs, or --model and --hardware",
    ),
    (
        "balance",
        |g| ["profile", "hardware", "costs"].iter().any(|option| g.is_typed(option)) && !g.has("device"),
        "splits layers by what they cost: predict with --profile, --model and --hardware, or --costs and --layers, and run the result with --layers",
    ),
    (
        "layers",
        |g| !g.is_typed("balance") || g.is_typed("costs"),
        "sets the layers that --balance would find; leave one of the two out",
    ),
    (
        "chunks",
        |g| matches!(g.get("layout"), None | Some(StageSplit::Torchtitan(_))),
        "is the number of stages per device, which --layout determines; leave it out",
    ),
    (
        "layers balance",
        |g| !g.is_typed("layout"),
        "says which stage has which layers, and so does --layout; leave it out",
    ),
    (
        "layout",
        |g| !g.has("device") && !g.is_typed("timeline"),
        "says what stages hold for predictions; leave it out here, or split a model that is trained with --layers",
    ),
    (
        "costs",
        |g| g.is_typed("layout") || !g.get::<CostsText>("costs").is_some_and(|costs| costs.has_pieces()),
        "has embedding, mtp or loss, which --layout places; give --layout, too, or leave them out",
    ),
    (
        "memory_cap",
        |g| g.is_typed("hardware") || g.get("memory_cap").and_then(MemoryCap::bytes).is_none(),
        "in bytes needs a model on hardware: predict --model llama-3-70b --hardware h100-sxm; elsewhere give activation units, as in 8",
    ),
    (
        "batch",
        |g| !g.has("calibrate_micro"),
        "would change the size of micro-batches, which is fixed here; leave it out",
    ),
    (
        "sharing link_scope",
        |g| g.get("transfer").is_some_and(|time: Decimal| time.to_f64() > 0.0),
        "is about messages that occupy a link; give the time that they take with --transfer",
    ),
    (
        "link_scope",
        |g| g.get("sharing") != Some(Sharing::Unlimited),
        "is about shared links, and --sharing unlimited shares none; leave one of the two out",
    ),
    (
        "ascii",
        |g| !g.has("format") || matches!(g.get("format"), Some(Format::Table | Format::Md)),
        "is for text that people read; leave it out, or print --format table or md",
    ),
    (
        "palette window no_cut",
        |g| g.is_drawn_in_terminal() || g.is_drawn(|_| true),
        "needs a drawing; write a picture, a page or a folder, as in -o timelines.svg",
    ),
    (
        "collapse",
        |g| g.is_drawn_in_terminal() || g.is_drawn(|drawn| drawn == TimelineRendering::Still),
        "is for the terminal and pictures, pages zoom; write a picture, as in -o timelines.svg",
    ),
    (
        "title no_memory no_waits",
        |g| g.is_drawn(|_| true),
        "is for pictures and pages; write one, as in -o timelines.svg",
    ),
    (
        "width font_size row_height columns no_notes",
        |g| g.is_drawn(|drawn| drawn == TimelineRendering::Still),
        "is for pictures; write one, as in -o timelines.svg",
    ),
    (
        "moe_overlap",
        |g| !g.is_typed("overlap") || g.get("overlap") == Some(Overlap::Streams),
        "runs pairs on two streams, and --overlap says otherwise; leave one of the two out",
    ),
    (
        "overlap",
        |g| g.get("overlap") != Some(Overlap::Streams) || !g.has("device"),
        "streams is for predictions, and the devices of this verb have no stream for the communication of experts; take --overlap atomic",
    ),
    (
        "overlap",
        |g| g.get("overlap") != Some(Overlap::Streams) || g.is_typed("profile") || g.is_typed("hardware"),
        "streams needs the times of sub-ops, which --costs does not have; give a cost file with sub_ops as --profile, or a mixture of \
         experts as --model with --hardware",
    ),
    (
        "costs",
        |g| !g.get::<CostsText>("costs").is_some_and(|costs| costs.has_collectives()) || g.has_collectives(),
        "has unshard or reduce, the times of collectives, and there are none; give --max-active-stages 3, or leave them out",
    ),
    (
        "unshard_lookahead defer_reduce_grad_wait",
        |g| g.is_typed("max_active_stages"),
        "is a setting of --max-active-stages; give that, too, or leave this out",
    ),
    (
        "overlap_optimizer_offload",
        |g| g.is_typed("optimizer_offload"),
        "is a setting of --optimizer-offload; give that, too, or leave this out",
    ),
    (
        "exact",
        |g| !g.is_typed("max_active_stages"),
        "proves orders of ops, without the collectives of --max-active-stages; leave one of the two out",
    ),
    (
        "max_active_stages",
        |g| !g.is_typed("profile") && !g.is_typed("timeline"),
        "gathers parameters, and a profile or timeline does not say how long that takes; leave it out, or give --costs unshard=1,reduce=1",
    ),
    (
        "only",
        |g| g.get::<u32>("only").is_none_or(|number| g.schedules().count() >= number as usize),
        "is the number of one of several schedules; name as many with --schedule, or leave it out",
    ),
    ("tokenizer", |g| g.is_typed("data"), "says how a text file becomes tokens; name the file with --data"),
];

struct GivenOptions<'a> {
    verb: &'a Command,
    matches: &'a ArgMatches,
}

impl GivenOptions<'_> {
    fn has(&self, option: &str) -> bool {
        self.verb.get_arguments().any(|argument| argument.get_id() == option)
    }

    fn is_typed(&self, option: &str) -> bool {
        self.has(option) && self.matches.value_source(option) == Some(ValueSource::CommandLine)
    }

    fn get<T: Clone + Send + Sync + 'static>(&self, option: &str) -> Option<T> {
        self.matches.try_get_one::<T>(option).ok().flatten().cloned()
    }

    fn has_several(&self, option: &str) -> bool {
        self.get(option).is_some_and(|numbers: Numbers| numbers.are_several())
    }

    /// Whether devices only wait for the time of their ops.
    fn is_timed(&self) -> bool {
        #[cfg(feature = "training")]
        return self.get("device") == Some(DeviceKind::Timed);
        #[cfg(not(feature = "training"))]
        false
    }

    fn is_rate_constant(&self) -> bool {
        #[cfg(feature = "training")]
        return self.get("lr_schedule") == Some(Decay::Constant);
        #[cfg(not(feature = "training"))]
        false
    }

    /// Whether collectives are asked for, or may be in a file.
    fn has_collectives(&self) -> bool {
        let mut names = self.schedules();
        self.is_typed("max_active_stages") || self.has("max_active_stages") && names.any(|name| name.ends_with(".csv"))
    }

    /// Returns the schedules that are named.
    fn schedules(&self) -> impl Iterator<Item = &String> {
        let named = self.matches.try_get_many::<Names>("schedule").ok().flatten();
        named.into_iter().flatten().flat_map(Names::all)
    }

    fn is_drawn_in_terminal(&self) -> bool {
        self.has("color") && self.get("format") == Some(Format::Table)
    }

    /// Whether an output is drawn in a way that `fits`. Verbs that write a folder by default draw everything.
    fn is_drawn(&self, fits: fn(TimelineRendering) -> bool) -> bool {
        let mut places = self.matches.try_get_many::<Output>("output").ok().flatten().into_iter().flatten().peekable();
        if places.peek().is_none() {
            return ["run", "accuracy"].contains(&self.verb.get_name());
        }
        places.any(|place| match place.shape {
            OutputKind::Stdout => false,
            OutputKind::Folder => true,
            OutputKind::File(drawn, _) => drawn != TimelineRendering::Not && fits(drawn),
        })
    }

    /// Returns the first option that has no effect, and why.
    fn refusal(&self) -> Option<String> {
        let broken = |(options, fits, why): &Rule| {
            let given = options.split_whitespace().find(|option| self.is_typed(option));
            given.filter(|_| !fits(self)).map(|option| format!("--{} {why}", self.long(option)))
        };
        RULES.iter().find_map(broken).or_else(|| self.set_twice())
    }

    fn long(&self, option: &str) -> String {
        let argument = self.verb.get_arguments().find(|argument| argument.get_id() == option);
        argument.and_then(|argument| argument.get_long()).unwrap_or(option).to_string()
    }

    fn set_twice(&self) -> Option<String> {
        let mut keys = BTreeSet::new();
        let mut set = self.matches.try_get_many::<(String, String)>("set").ok().flatten()?;
        if self.is_typed("chunks") && set.clone().any(|(key, _)| key == "v") {
            return Some(
                "--chunks and --set v both set the number of stages per device; leave one of the two out".to_string(),
            );
        }
        let all = set.clone();
        let (key, _) = set.find(|(key, _)| !keys.insert(key))?;
        let names = self.matches.try_get_many::<Names>("schedule").ok().flatten();
        let name = names.and_then(|mut names| Some(names.next()?.all().first()?.clone()));
        let name = name.unwrap_or_else(|| "interleaved-1f1b".to_string());
        let variant = |(_, value): &(String, String)| format!("-s '{name}:{key}={value}'");
        let variants: Vec<String> = all.filter(|(other, _)| other == key).map(variant).collect();
        Some(format!(
            "--set gives {key} twice, and each applies to all schedules; give it once, or compare {}",
            variants.join(" ")
        ))
    }
}

/// Rejects options that have no effect together with the others given.
pub fn check(program: &Command, matches: &ArgMatches) -> Result<(), String> {
    let (mut verb, mut matches) = (program, matches);
    while let Some((name, inner)) = matches.subcommand() {
        (verb, matches) = (verb.find_subcommand(name).unwrap_or(verb), inner);
    }
    GivenOptions { verb, matches }.refusal().map_or(Ok(()), Err)
}
