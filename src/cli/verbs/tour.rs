//! `pipesim tour`: eight screens, from one micro-batch at a time to no bubble in 1F1B's memory.

use crate::cli::Failure;
use crate::cli::flags::in_report;
use crate::cli::options::output::{OneFile, draw};
use crate::cli::terminal::colors::Color;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{print, print_folded, wrap};
use clap::Args;
use pipesim_answer::resolve::{Costs, Resolved, Selection};
use pipesim_report::{Look, Report, number, percent};
use serde::Deserialize;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

const DEVICES: u32 = 4;

#[derive(Deserialize)]
struct Screens {
    screens: Vec<Scene>,
}

/// What a screen shows, from `tour.toml`.
#[derive(Deserialize)]
struct Scene {
    title: String,
    schedule: String,
    micro: u32,
    sentence: String,
}

/// What to run next, and what it shows.
const NEXT: [(&str, &str); 3] = [
    ("pipesim explain --stages 4 --micro 8 -s 1f1b", "why its devices idle, and what would help"),
    (
        "pipesim predict --model llama-3-8b --hardware h100-sxm --stages 4 --micro 16 --seq 8192 -s 1f1b",
        "the same for a model on GPUs; no GPU needed",
    ),
    ("pipesim explore", "all of this in a browser, with sliders"),
];

#[derive(Args)]
#[command(after_help = "On a terminal, Enter shows the next screen and q ends; elsewhere everything is printed.")]
pub struct Tour {
    /// Write one .html page instead; - for stdout
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Print ASCII instead of Unicode
    #[arg(long, conflicts_with = "output")]
    ascii: bool,
    /// Print all screens at once, without pauses
    #[arg(long, conflicts_with = "output")]
    all: bool,
    #[command(flatten)]
    remarks: RemarkOptions,
}

struct Screen {
    title: String,
    sentence: String,
    command: String,
    resolved: Resolved,
}

impl Screen {
    fn all() -> Result<Vec<Screen>, Failure> {
        let Screens { screens } = toml::from_str(include_str!("tour.toml")).map_err(anyhow::Error::from)?;
        let all = screens.len();
        let one = |(number, Scene { title, schedule, micro, sentence }): (usize, Scene)| {
            Ok(Screen {
                title: format!("{} of {all}  {title}", number + 1),
                sentence,
                command: format!("pipesim predict --stages {DEVICES} --micro {micro} -s {schedule}"),
                resolved: Selection::new(DEVICES, micro).resolve(&schedule, &Costs::default())?,
            })
        };
        screens.into_iter().enumerate().map(one).collect()
    }

    /// Returns the timeline, and the figures in a line.
    fn shown(&self) -> Result<(Report, String), Failure> {
        let predicted = self.resolved.predict()?;
        let (m, microbatches) = (predicted.metrics(), self.resolved.graph.schedule().microbatches);
        let figures = format!(
            "{} units, {} per micro-batch; bubble {}, span bubble {}; peak activations {}",
            number(m.makespan),
            number(m.makespan / f64::from(microbatches)),
            percent(m.bubble),
            percent(m.span_bubble),
            number(m.peak_activations())
        );
        Ok((Report::drawn(&[predicted]), figures))
    }
}

impl Tour {
    pub fn run(&self) -> Result<(), Failure> {
        let place = self.output.as_deref().map(|path| OneFile::at(Some(path), &[".html"])).transpose()?;
        let screens = Screen::all()?;
        if let Some(place) = place {
            return place.write(&page(&screens)?, self.remarks, |_| "; open it in a browser".to_string());
        }
        let stdin = std::io::stdin();
        let pages = !self.all && stdin.is_terminal() && std::io::stdout().is_terminal();
        for (number, screen) in screens.iter().enumerate() {
            let (mut report, figures) = screen.shown()?;
            in_report(&mut report);
            let drawn = draw(&report, self.ascii, Color::default(), 0);
            let [sentence, figures] = [&screen.sentence, &figures].map(|text| wrap(&[text.to_string()], 0));
            print_folded(&format!("{}\n\n{sentence}\n{drawn}\n{figures}$ {}\n", screen.title, screen.command))?;
            if number + 1 == screens.len() {
                break;
            }
            if !pages {
                print("\n\n")?;
                continue;
            }
            print("\n[Enter: on, q: end] ")?;
            let mut answer = String::new();
            let read = stdin.lock().read_line(&mut answer).unwrap_or(0);
            if read == 0 || answer.trim().eq_ignore_ascii_case("q") {
                return Ok(());
            }
            print("\n")?;
        }
        let next = NEXT.map(|(command, shows)| format!("  {command}\n      {shows}\n")).concat();
        print_folded(&format!("\nNext:\n{next}"))
    }
}

fn page(screens: &[Screen]) -> Result<String, Failure> {
    let mut text = include_str!("tour.html").to_string();
    for screen in screens {
        let (report, figures) = screen.shown()?;
        let look = Look { title: Some(String::new()), memory: false, waits: false, ..Look::default() };
        let picture = Report { look, subtitle: String::new(), provenance: Default::default(), ..report }.svg();
        let picture = picture.split_once("<svg").map_or(String::new(), |(_, rest)| format!("<svg{rest}"));
        let Screen { title, sentence, command, .. } = screen;
        text += &format!(
            "<section>\n<h2>{title}</h2>\n<p>{sentence}</p>\n{picture}\n<p>{figures}.</p>\n<p><code>{command}</code></p>\n</section>\n"
        );
    }
    let next = NEXT.map(|(command, shows)| format!("<li><code>{command}</code>: {shows}</li>\n")).concat();
    text += &format!("<h2>Next</h2>\n<ul>\n{next}</ul>\n");
    Ok(text + "</main>\n</body>\n</html>\n")
}
