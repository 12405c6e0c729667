//! Comparison of the Active Flash paper (FAST 2013) with the models: its Tables 4, 5 and 7, Fig. 3a and claims of its text, as printed and
//! as computed, with the interpretation used for each number. The program also draws Figs. 3 and 4 and Table 5 for any site.
//!
//! ```sh
//! cargo run -p tidemill-plan --example active_flash                             # the comparison
//! cargo run -p tidemill-plan --example active_flash -- --without stage-out-over-link
//! cargo run -p tidemill-plan --example active_flash -- --charts DIR [--site FILE]
//! ```
#![expect(clippy::print_stdout, reason = "it prints a table")]

mod bar;
mod claims;
mod figures;
mod paper;
mod prototype;
mod published;

use std::error::Error;
use std::path::{Path, PathBuf};
use tidemill_plan::model::{Corrections, Site, jaguar};

fn main() -> Result<(), Box<dyn Error>> {
    let mut corrections = Corrections::default();
    let (mut site, mut directory): (Option<PathBuf>, Option<PathBuf>) = (None, None);
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--without" => {
                let names = Corrections::NAMES.join(", ");
                let switch = corrections.switch(&value);
                *switch.ok_or(format!("{value} is none of {names}"))? = false;
            }
            "--site" => site = Some(value.into()),
            "--charts" => directory = Some(value.into()),
            _ => return Err(format!("{flag} is none of --without, --site, --charts").into()),
        }
    }
    match directory {
        Some(directory) => draw(site.as_deref(), &corrections, &directory)?,
        None => print!("{}", paper::paper(&corrections)),
    }
    Ok(())
}

/// Writes the charts of a site; by default the paper's site.
fn draw(
    site: Option<&Path>,
    corrections: &Corrections,
    directory: &Path,
) -> Result<(), Box<dyn Error>> {
    let site = site.map_or_else(|| Ok(jaguar()), Site::read)?;
    std::fs::create_dir_all(directory)?;
    for chart in figures::charts(&site, corrections) {
        let path = directory.join(chart.file_name);
        std::fs::write(&path, chart.svg)?;
        println!("{}", path.display());
    }
    Ok(())
}
