//! `pipesim tour`: eight screens, from one micro-batch at a time to no bubble in 1F1B's memory.

use crate::cli::Failure;
use crate::cli::options::output::{OneFile, draw};
use crate::cli::terminal::colors::Color;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cli::terminal::{print, print_folded, wrap};
use crate::report::{self, Look, Report, number, percent};
use crate::resolve::{Costs, Resolved, Selection};
use clap::Args;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

const DEVICES: u32 = 4;

/// The screens: title, schedule, micro-batches, explanation.
const SCREENS: [(&str, &str, u32, &str); 8] = [
    (
        "One at a time",
        "naive",
        8,
        "Four devices share the model's layers, and a micro-batch goes forward through all of them and back: while one device \
         works, three wait.",
    ),
    (
        "All forwards, then all backwards",
        "gpipe",
        8,
        "GPipe sends the micro-batches one after the other, so that the devices work at the same time; but each device holds the \
         activations of all eight, from their forward to their backward.",
    ),
    (
        "One forward, one backward",
        "1f1b",
        8,
        "1F1B runs a backward as soon as one is ready: its step is as long as GPipe's, but device r holds at most p - r \
         micro-batches, however many there are.",
    ),
    (
        "More micro-batches",
        "1f1b",
        16,
        "Filling and draining the pipeline takes (p - 1) (F + B) once per step: with twice the micro-batches it is a smaller share.",
    ),
    (
        "Two chunks per device",
        "interleaved-1f1b:v=2",
        8,
        "Interleaving gives each device two short runs of layers instead of a long one: the pipeline fills in half the time, at the \
         price of twice the messages and some more memory.",
    ),
    (
        "Two halves of a backward",
        "zb-h1",
        8,
        "Other devices wait only for I, the half of a backward that computes the gradient of the input; ZB-H1 runs W, the half for \
         the weights, while 1F1B would drain.",
    ),
    (
        "No device waits once it has started",
        "zb-h2",
        8,
        "ZB-H2 starts twice as many forwards ahead: from its first op to its last no device idles (span bubble 0), for nearly twice \
         the activations.",
    ),
    (
        "The V",
        "zb-v",
        8,
        "ZB-V places the stages as a V, the first and the last on one device: a backward begins where the forward ends, and the \
         same speed takes no more memory than 1F1B.",
    ),
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
    #[command(flatten)]
    remarks: RemarkOptions,
}

struct Screen {
    title: String,
    sentence: &'static str,
    command: String,
    resolved: Resolved,
}

impl Screen {
    fn all() -> Result<Vec<Screen>, Failure> {
        let one = |(number, &(title, name, micro, sentence)): (usize, &(&str, &str, u32, &'static str))| {
            Ok(Screen {
                title: format!("{} of {}  {title}", number + 1, SCREENS.len()),
                sentence,
                command: format!("pipesim predict --stages {DEVICES} --micro {micro} -s {name}"),
                resolved: Selection::new(DEVICES, micro).resolve(name, &Costs::default())?,
            })
        };
        SCREENS.iter().enumerate().map(one).collect()
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
        let pages = stdin.is_terminal() && std::io::stdout().is_terminal();
        for (number, screen) in screens.iter().enumerate() {
            let (report, figures) = screen.shown()?;
            let drawn = draw(&report, self.ascii, Color::default(), 0);
            let [sentence, figures] = [screen.sentence, &figures].map(|text| wrap(&[text.to_string()], 0));
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
        if pages {
            print_folded("\nNext: `pipesim explain --stages 4 --micro 8 -s 1f1b`, `pipesim schedules`.\n")?;
        }
        Ok(())
    }
}

/// Makes one self-contained page of all screens.
fn page(screens: &[Screen]) -> Result<String, Failure> {
    let mut text = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>From naive to ZB-V</title>\n<style>\n\
         :root { color-scheme: light dark; }\n\
         body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }\n\
         section { margin: 3rem 0; }\nsvg { width: 100%; height: auto; }\ncode { font-size: 0.95em; }\n\
         </style>\n</head>\n<body>\n<main>\n<h1>From naive to ZB-V</h1>\n<p>Eight predictions of a training step on four devices. F is the \
         forward of a micro-batch, B its backward, I and W the halves of a backward, for the input and for the weights; F, I and W take \
         one unit each.</p>\n",
    );
    for screen in screens {
        let (report, figures) = screen.shown()?;
        let look = Look { title: Some(String::new()), memory: false, waits: false, ..Look::default() };
        let picture = report::svg(&Report { look, subtitle: String::new(), provenance: Default::default(), ..report });
        let picture = picture.split_once("<svg").map_or(String::new(), |(_, rest)| format!("<svg{rest}"));
        let Screen { title, sentence, command, .. } = screen;
        text += &format!(
            "<section>\n<h2>{title}</h2>\n<p>{sentence}</p>\n{picture}\n<p>{figures}.</p>\n<p><code>{command}</code></p>\n</section>\n"
        );
    }
    Ok(text + "</main>\n</body>\n</html>\n")
}
