//! Options that several verbs share.

use super::Failure;
use super::choice::one_of;
use super::condition::{self, Condition};
use super::look::LookOptions;
use super::numbers::whole;
use crate::cost::{CostError, CostFile, Decimal, GivenCosts, Per, Slow, TimeUnit};
use crate::report::{Place, Shape, endings};
use crate::resolve::{self, Costs, Files};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

const PER: [(&str, &str, Per); 4] = [
    ("device", "A device's whole share of layers: twice the devices are twice the model", Per::Device),
    ("stage", "A stage of average size", Per::Stage),
    ("layer", "A layer, with --layers", Per::Layer),
    ("model", "The whole model: the same one over all p and v", Per::Model),
];

/// Reads a plain file of at most `limit` bytes as text.
pub fn read_text(path: &Path, limit: u64) -> Result<String, Failure> {
    Ok(resolve::read_text(&Files, &path.display().to_string(), limit)?)
}

/// What ops cost when no run says so.
#[derive(Args, Clone, Debug)]
pub struct CostOptions {
    /// Costs per device (a chunk costs 1/v): F=1,I=1,W=1,B=2,comm=0.1,keep=1; B is I + W, or I and W are B/2, unless given. All times with a unit (F=18.5ms,comm=300us: ns, us, ms, s) or none [default: units]
    #[arg(long, value_name = "F=..,I=..", value_parser = given_costs)]
    pub costs: Option<GivenCosts>,
    /// What --costs are of; comm is of a message in any case [default: device]
    #[arg(long, value_name = "WHAT", value_parser = one_of(PER))]
    pub costs_per: Option<Per>,
    /// Measured costs, as `pipesim profile` writes them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// A device that runs slower by a factor, repeatable: 2=1.3
    #[arg(long, value_name = "DEVICE=FACTOR", value_parser = slow)]
    pub slow: Vec<(u32, Decimal)>,
    /// Layers of each stage, in model order: 7,5; with --costs also one number for all of them, split evenly (a stage with more than the average costs as much more)
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = whole::<usize>(..))]
    pub layers: Option<Vec<usize>>,
    /// Split the layers among the stages so that the schedule's makespan is shortest, and say what that gains (with --profile)
    #[arg(long)]
    pub balance: bool,
}

fn given_costs(text: &str) -> Result<GivenCosts, String> {
    if text.trim().is_empty() {
        return Err("expected F=..,I=..,W=.. or some of them; leave --costs out for units".to_string());
    }
    text.parse::<GivenCosts>().map_err(|e| e.to_string())
}

fn slow(text: &str) -> Result<(u32, Decimal), String> {
    let (device, factor) =
        text.split_once('=').ok_or_else(|| format!("expected DEVICE=FACTOR, found '{text}'; write it as in 2=1.3"))?;
    let device: u32 = device.trim().parse().map_err(|_| format!("expected a device number, found '{device}'"))?;
    if factor.trim_end().ends_with('%') {
        return Err(format!("expected a factor, found '{factor}'; 30 % slower is {device}=1.3"));
    }
    let factor: Decimal = factor.trim().parse().map_err(|e: CostError| e.to_string())?;
    if factor.to_f64() <= 0.0 {
        return Err("the factor must be above 0".to_string());
    }
    Ok((device, factor))
}

impl CostOptions {
    /// The cost file, where one is given.
    pub fn file(&self) -> Result<Option<CostFile>, Failure> {
        let Some(path) = &self.profile else { return Ok(None) };
        let text = read_text(path, 256 << 20)?;
        CostFile::from_json(&text).map(Some).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
    }

    /// Whether anything is said of costs.
    pub fn any(&self) -> bool {
        self.costs.is_some() || self.costs_per.is_some() || self.profile.is_some() || !self.slow.is_empty()
    }

    /// The first option that says something of costs.
    pub fn named(&self) -> &'static str {
        match (&self.costs, &self.profile) {
            (Some(_), _) => "--costs",
            (None, Some(_)) => "--profile",
            (None, None) if self.costs_per.is_some() => "--costs-per",
            (None, None) => "--slow",
        }
    }

    /// The unit that times are in.
    pub fn time_unit(&self) -> &'static str {
        let given = self.costs.as_ref().and_then(GivenCosts::unit).map_or("unit", TimeUnit::name);
        if self.profile.is_some() { "ms" } else { given }
    }

    /// Where costs come from: the cost file, else what is given, else units.
    pub fn costs(&self) -> Result<Costs, Failure> {
        match self.file()? {
            Some(file) => Ok(self.measured(file)),
            None => self.given(),
        }
    }

    /// The costs of `file`, for the layers asked for.
    pub fn measured(&self, file: CostFile) -> Costs {
        Costs::measured(file, self.layers.clone())
    }

    /// The costs given here.
    pub fn given(&self) -> Result<Costs, Failure> {
        let slow: Slow = self.slow.iter().copied().collect();
        if slow.len() < self.slow.len() {
            return Err(Failure::Usage("--slow names a device twice; give each once".to_string()));
        }
        Ok(Costs::Given { costs: self.of_all(), slow })
    }

    /// The costs given here, and what they are of.
    pub fn of_all(&self) -> GivenCosts {
        let costs = self.costs.clone().unwrap_or_default();
        costs.per(self.costs_per.unwrap_or_default()).with_layers(self.layers.clone())
    }
}

/// Shape of what is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Table and timeline for people.
    #[default]
    Table,
    /// One object, full precision.
    Json,
    /// A row a schedule.
    Csv,
    /// A Markdown table.
    #[value(alias = "markdown")]
    Md,
    /// LaTeX tables with booktabs' rules.
    #[value(alias = "tex")]
    Latex,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, as many as it has by COLORTERM and TERM, unless NO_COLOR is set; CLICOLOR_FORCE is as always.
    #[default]
    Auto,
    /// Always, 256 where the terminal does not say how many it has.
    Always,
    /// Never.
    Never,
}

/// What `-o` takes, in words.
fn outputs() -> String {
    let endings = endings().join(" ");
    format!(
        "Write a file ({endings}) or, where the name has no ending or ends in /, a report folder; - for no more than is printed; repeatable"
    )
}

/// A place to write to, by its name.
pub fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(Place::named)
}

/// What is printed to stdout.
#[derive(Args, Clone, Debug, Default)]
pub struct PrintOptions {
    /// What is printed to stdout
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// ASCII instead of Unicode in what is printed for people: --format table and md
    #[arg(long)]
    pub ascii: bool,
}

/// What is printed to stdout by a verb that draws timelines.
#[derive(Args, Clone, Debug, Default)]
pub struct DrawOptions {
    #[command(flatten)]
    pub print: PrintOptions,
    /// Colours in the terminal; NO_COLOR is respected
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
}

/// What is written to files.
#[derive(Args, Clone, Debug, Default)]
pub struct WriteOptions {
    /// Files and report folders to write.
    #[arg(long, short, value_name = "PATH", help = outputs(), value_parser = place())]
    pub output: Vec<Place>,
    #[command(flatten)]
    pub look: LookOptions,
}

impl WriteOptions {
    /// Whether all goes to stdout.
    pub fn writes_nothing(&self) -> bool {
        self.output.iter().all(|place| matches!(place.shape, Shape::Stdout))
    }

    /// What is asked for; reports/latest where nothing is.
    pub fn or_latest(&self) -> Result<WriteOptions, Failure> {
        let latest = || Place::named("reports/latest").map(|place| vec![place]);
        let output = if self.output.is_empty() { latest()? } else { self.output.clone() };
        Ok(WriteOptions { output, look: self.look.clone() })
    }
}

/// What people are told on stderr.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct RemarkOptions {
    /// Print nothing to stderr but errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// What people are told on stderr by a verb that has more to say.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct DetailOptions {
    #[command(flatten)]
    pub remarks: RemarkOptions,
    /// Print more to stderr; repeatable
    #[arg(long, short, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// What the figures found are held against.
#[derive(Args, Clone, Debug, Default)]
pub struct JudgeOptions {
    /// Thresholds.
    #[arg(long, value_name = "CONDITION", value_parser = Condition::parse, help = condition::help())]
    pub fail_if: Vec<Condition>,
}
