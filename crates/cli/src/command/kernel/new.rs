//! `tidemill kernel new`: a directory with a kernel to begin with.

use super::build::{API, HEADER, HEADER_NAME};
use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::NewKernel as MadeKernel;
use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct NewKernel {
    /// Directory to make; its last part becomes the kernel's name
    directory: PathBuf,
    /// Language of the source
    #[arg(long, short, value_enum, default_value = "c")]
    language: TemplateLanguage,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TemplateLanguage {
    #[value(name = "c")]
    C,
    #[value(name = "c++")]
    Cpp,
    #[value(name = "rust")]
    Rust,
}

/// A fold, as it can be both a shared object and a module.
const C: &str = include_str!("../../../../../examples/kernels/range.c");
const CPP: &str = include_str!("../../../../../examples/kernels/range.cpp");
const RUST: &str = include_str!("../../../../../examples/kernels/range.rs");

/// Input of the first test: eight numbers, the smallest -2.5 and the largest 40.
const VALUES: [f64; 8] = [3.0, 1.5, -2.5, 7.0, 40.0, 0.0, 12.25, 5.0];

pub(crate) fn run(new: &NewKernel, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = &new.directory;
    let name = directory.file_name().and_then(|name| name.to_str());
    let name = name.context("the directory has no name in UTF-8")?;
    ensure!(
        !directory.exists(),
        "exists already: {}; give another name",
        directory.display()
    );
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    match new.language {
        TemplateLanguage::C => write(directory, &format!("{name}.c"), C)?,
        TemplateLanguage::Cpp => write(directory, &format!("{name}.cpp"), CPP)?,
        TemplateLanguage::Rust => rust(directory, name)?,
    }
    if !matches!(new.language, TemplateLanguage::Rust) {
        write(directory, HEADER_NAME, HEADER)?;
    }
    fs::write(
        directory.join("test.f64"),
        VALUES.map(f64::to_le_bytes).concat(),
    )?;
    let at = directory.display();
    let text = format!(
        "{at} made. Next:\n  tidemill kernel build {at}\n  tidemill kernel test {at}/{name}.so {at}/test.f64 --merge-invariance\n  \
         tidemill kernel add {at}/{name}.so"
    );
    let directory = at.to_string();
    context
        .output
        .show(&Message(text, MadeKernel { directory }))?;
    Ok(ExitCode::SUCCESS)
}

fn write(directory: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = directory.join(name);
    let parent = path.parent().unwrap_or(directory);
    fs::create_dir_all(parent)?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Writes manifests too, so that editors and cargo know the directory.
fn rust(directory: &Path, name: &str) -> anyhow::Result<()> {
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[lib]\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\ntidemill-kernel-api = {{ path = \"tidemill-kernel-api\" }}\n\n[workspace]\n"
    );
    write(directory, "Cargo.toml", &manifest)?;
    write(directory, "src/lib.rs", RUST)?;
    let api = "[package]\nname = \"tidemill-kernel-api\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[lib]\n\
               path = \"lib.rs\"\n";
    write(directory, "tidemill-kernel-api/Cargo.toml", api)?;
    for (file, text) in API {
        write(directory, &format!("tidemill-kernel-api/{file}"), text)?;
    }
    Ok(())
}
