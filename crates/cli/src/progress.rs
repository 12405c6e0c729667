//! A bar for copies that take more than a second.

use crate::context::CommandContext;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_model::display::line;

/// Time without a bar at the start of a copy.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of copied bytes, drawn as a bar if the copy takes long.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    may_draw: bool,
    drawn: AtomicBool,
}

impl Progress {
    /// Starts at 0 bytes; `total` is 0 if unknown.
    pub(crate) fn new(context: &CommandContext, total: u64) -> Self {
        let bar = match total {
            0 => ProgressBar::no_length(),
            total => ProgressBar::new(total),
        };
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let template = match total {
            0 => "{spinner} {decimal_bytes} {decimal_bytes_per_sec} {wide_msg}",
            _ => {
                "{bar:30.green/dim} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} {wide_msg}"
            }
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            began: Instant::now(),
            may_draw: context.draws(),
            drawn: AtomicBool::new(false),
        }
    }

    /// Adds copied bytes.
    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.may_draw
            && self.began.elapsed() > PATIENCE
            && !self.drawn.swap(true, Ordering::Relaxed)
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Shows the name of the current file.
    pub(crate) fn now(&self, name: impl std::fmt::Display) {
        self.bar.set_message(line(&name.to_string()));
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
