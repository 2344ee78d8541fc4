//! The losses of a run as a plot, and as a page to look at while it goes on.

use super::log::{LOG, LogLine};
use super::run::LoopEvent;
use anyhow::{Context, Result};
use pipesim_report::{Chart, Plot, PlotAxis, Plots, Series, SeriesStyle};
use pipesim_system::unfinished::Unfinished;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most points of a series: each is the mean of as many neighbouring steps.
const MOST_POINTS: usize = 200;

/// Returns the losses in the log of the run in `folder`, by step; `None` of fewer than two steps.
///
/// # Errors
/// The log cannot be read.
pub fn loss_curve(folder: &Path) -> Result<Option<Plots>> {
    let path = folder.join(LOG);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let lines: Vec<LogLine> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if lines.len() < 2 {
        return Ok(None);
    }
    let losses: Vec<(f64, f64)> = lines.iter().map(|line| (f64::from(line.step), line.loss)).collect();
    let size = losses.len().div_ceil(MOST_POINTS);
    let mean = |part: &[(f64, f64)]| {
        let count = part.len() as f64;
        (part.iter().map(|point| point.0).sum::<f64>() / count, part.iter().map(|point| point.1).sum::<f64>() / count)
    };
    let name = if size > 1 { format!("training, mean of {size} steps") } else { "training".to_string() };
    let held_out = lines.iter().filter_map(|line| Some((f64::from(line.step), line.validation_loss?)));
    let series = [(name, losses.chunks(size).map(mean).collect()), ("held-out tokens".to_string(), held_out.collect())];
    let series = series.into_iter().filter(|(_, points): &(String, Vec<_>)| !points.is_empty());
    let chart = Chart {
        title: "Loss".to_string(),
        x: PlotAxis { label: "step".to_string(), ..PlotAxis::default() },
        y: PlotAxis { label: "mean loss per token, nats".to_string(), ..PlotAxis::default() },
        series: series.map(|(name, points)| Series { name, style: SeriesStyle::Line, points }).collect(),
        guides: Vec::new(),
    };
    Ok(Some(Plots { title: String::new(), plots: vec![Plot::Chart(chart)], ..Plots::default() }))
}

/// A page in the folder of a run that shows its losses so far, and loads itself again until the run ends.
#[derive(Debug)]
pub struct LossPage<'a> {
    folder: &'a Path,
    is_written: bool,
    /// Steps done, and how many there will be.
    steps: Cell<(u32, u32)>,
    /// When it is written next; never after it could not be.
    next: Cell<Option<Instant>>,
}

impl<'a> LossPage<'a> {
    const NAME: &'static str = "loss.html";
    /// Least time between two pages.
    const PAUSE: Duration = Duration::from_secs(2);
    /// Least time between two pages, in times that one takes.
    const SHARE: u32 = 50;

    /// Returns the page of the run in `folder`; of several ranks, one writes it.
    pub fn new(folder: &'a Path, is_written: bool) -> LossPage<'a> {
        LossPage { folder, is_written, steps: Cell::new((0, 0)), next: Cell::new(Some(Instant::now())) }
    }

    /// Returns where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(Self::NAME)
    }

    /// Writes the page if an event changes it, and if it is time.
    ///
    /// # Errors
    /// The log cannot be read, or the page cannot be written.
    pub fn show(&self, event: LoopEvent<'_>) -> Result<()> {
        let (_, all) = self.steps.get();
        match event {
            LoopEvent::Begin { done, steps } => self.steps.set((done, steps)),
            LoopEvent::Step(line) => self.steps.set((line.step, all)),
            _ => {}
        }
        let began = Instant::now();
        let is_end = matches!(event, LoopEvent::End);
        let Some(next) = self.next.get().filter(|_| self.is_written) else { return Ok(()) };
        if !is_end && (!matches!(event, LoopEvent::Step(_)) || began < next) {
            return Ok(());
        }
        let written = self.write(is_end).with_context(|| format!("writing {}", self.path().display()));
        let pause = Self::PAUSE.max(began.elapsed() * Self::SHARE);
        self.next.set(written.is_ok().then(|| Instant::now() + pause));
        written
    }

    fn write(&self, is_end: bool) -> Result<()> {
        let Some(plots) = loss_curve(self.folder)? else { return Ok(()) };
        let ((step, all), svg) = (self.steps.get(), plots.svg()?);
        let again = if is_end { "" } else { "<meta http-equiv=\"refresh\" content=\"3\">" };
        let page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">{again}\
             <meta name=\"viewport\" content=\"width=device-width\"><title>Step {step} of {all}</title>\
             <style>body{{font:16px system-ui,sans-serif;margin:16px;background:#fff;color:#1f2328}}\
             svg{{max-width:100%;height:auto}}</style></head><body><h1>Step {step} of {all}</h1>{svg}</body></html>\n"
        );
        let unfinished = Unfinished::folder(self.folder)?;
        let path = unfinished.path().join(Self::NAME);
        std::fs::write(&path, page)?;
        Ok(std::fs::rename(path, self.path())?)
    }
}
