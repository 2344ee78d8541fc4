//! Options that say what ops cost.

use super::values::{one_of, whole};
use crate::cli::flags::as_flags;
use crate::cli::sandbox::Sandbox;
use crate::cli::{Failure, file_kind};
use clap::Args;
use pipesim_answer::question::{self, Question, StageSplit};
use pipesim_answer::resolve::{self, Costs, Error, Files};
use pipesim_cost::{CostFile, Decimal, GivenCosts, Per, TimeUnit, straggler};
use std::ops::Deref;
use std::path::{Path, PathBuf};

const PER: [(&str, &str, Per); 4] = [
    ("device", "A device's whole share of layers; with more devices the model grows", Per::Device),
    ("stage", "A stage of average size", Per::Stage),
    ("layer", "A layer; needs --layers", Per::Layer),
    ("model", "The whole model: the same one for every p and v", Per::Model),
];

/// Reads a text file of at most `limit` bytes.
pub fn read_text(path: &Path, limit: u64) -> Result<String, Failure> {
    Ok(resolve::read_text(&Files, &path.display().to_string(), limit)?)
}

/// Reads a cost file.
pub fn read_costs(path: &Path) -> Result<CostFile, Failure> {
    Ok(question::cost_file(&path.display().to_string(), &Files)?)
}

/// What ops cost, unless a run measures it.
#[derive(Args, Clone, Debug)]
pub struct CostOptions {
    /// Costs per device (a chunk costs 1/v): F=1,I=1,W=1,B=2,comm=0.1,keep=1. B defaults to I + W; if only B is given, I = W = B/2. Either all times have a unit (F=18.5ms,comm=300us: ns, us, ms, s) or none has. One value per stage: F=18.5:18.5:18.5:24ms,B=27ms, or with / for : if it cannot be a fraction; or a .csv or .toml file of stage times. unshard=1,reduce=1 for --max-active-stages, embedding=0,mtp=1,loss=0 (in layers) for --layout [default: F=1,I=1,W=1]
    #[arg(long, value_name = "F=..,I=..|FILE", value_parser = given_costs, conflicts_with = "profile")]
    pub costs: Option<CostsText>,
    /// What --costs are given for; comm is always per message [default: device]
    #[arg(long, value_name = "WHAT", value_parser = one_of(PER), conflicts_with = "profile")]
    pub costs_per: Option<Per>,
    /// Measured costs: a cost file written by `pipesim profile`
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Slow down a device by a factor: 2=1.3 (device 2 takes 1.3 times as long; with --hardware its kernels do); repeatable
    #[arg(long = "straggler", alias = "slow", value_name = "DEVICE=FACTOR", value_parser = straggler, conflicts_with = "profile")]
    pub slow: Vec<(u32, Decimal)>,
    /// Layers of each stage in model order: 7,5. With --costs, one number is split evenly over all stages; a stage with more layers than the average costs more
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<usize>(..))]
    pub layers: Option<Vec<usize>>,
    /// What each stage holds, for v = stages / devices: Megatron's string (Et*3|(tt|)*29,m|L: E embedding, t layer, m layer for multi-token prediction, L head and loss; stages may be empty), a JSON list, or torchtitan[:FIRST,LAST] layers less at the ends.
    #[arg(long, value_name = "STAGES", alias = "pipeline-model-parallel-layout", value_parser = str::parse::<StageSplit>)]
    pub layout: Option<StageSplit>,
    /// Split the layers over the stages for the shortest iteration, or makespan without hardware, and show the gain; needs --profile, --hardware, or --costs with --layers
    #[arg(long)]
    pub balance: bool,
}

/// Costs as they were written.
#[derive(Clone, Debug)]
pub struct CostsText {
    text: String,
    costs: GivenCosts,
}

impl Deref for CostsText {
    type Target = GivenCosts;

    fn deref(&self) -> &GivenCosts {
        &self.costs
    }
}

fn given_costs(text: &str) -> Result<CostsText, String> {
    let mistaken = |error: Error| file_kind::mistaken("", "costs", text).unwrap_or_else(|| as_flags(&error));
    let costs = question::given_costs(text, &Files).map_err(mistaken)?;
    Ok(CostsText { text: text.to_string(), costs })
}

impl CostOptions {
    /// Reads the cost file of --profile.
    pub fn file(&self) -> Result<Option<CostFile>, Failure> {
        self.profile.as_deref().map(read_costs).transpose()
    }

    /// Returns the first option given that says something about costs.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.costs.is_some(), "--costs"),
            (self.profile.is_some(), "--profile"),
            (self.costs_per.is_some(), "--costs-per"),
            (!self.slow.is_empty(), "--straggler"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    pub fn time_unit(&self) -> &'static str {
        let given = self.costs.as_deref().and_then(GivenCosts::unit).map_or("unit", TimeUnit::name);
        if self.profile.is_some() { "ms" } else { given }
    }

    /// Adds these options to a question.
    pub fn ask(&self, question: &mut Question) {
        question.costs = self.costs.as_ref().map(|costs| costs.text.clone());
        question.costs_per = self.costs_per;
        question.profile = self.profile.as_ref().map(|path| path.display().to_string());
        question.straggler = self.slow.iter().map(|(device, factor)| format!("{device}={factor}")).collect();
        question.layers = self.layers.clone().unwrap_or_default();
        question.layout.clone_from(&self.layout);
        question.balance = self.balance;
    }

    /// Returns the costs of the cost file, else the given ones, else units.
    pub fn costs(&self) -> Result<Costs, Failure> {
        let mut question = Question::default();
        self.ask(&mut question);
        Ok(question.plain_costs(&Sandbox)?)
    }

    /// Returns the costs of `file` for the layers asked for.
    pub fn measured(&self, file: CostFile) -> Costs {
        Costs::measured(file, self.layers.clone())
    }

    /// Returns the costs given on the command line, with what they are per.
    pub fn given(&self) -> GivenCosts {
        let costs = self.costs.as_deref().cloned().unwrap_or_default();
        costs.per(self.costs_per.unwrap_or_default()).with_layers(self.layers.clone())
    }
}
