//! `tidemill kernel new`: a folder with a kernel to begin with.

use super::build::{API, HEADER, HEADER_NAME};
use crate::context::Context;
use crate::output::Said;
use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// Folder to make; its last part becomes the kernel's name
    folder: PathBuf,
    /// Language of the source
    #[arg(long, short, value_enum, default_value = "c")]
    language: Language,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Language {
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

pub(crate) fn run(new: &New, context: &Context) -> anyhow::Result<ExitCode> {
    let folder = &new.folder;
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.context("the folder has no name in UTF-8")?;
    ensure!(
        !folder.exists(),
        "exists already: {}; give another name",
        folder.display()
    );
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    match new.language {
        Language::C => write(folder, &format!("{name}.c"), C)?,
        Language::Cpp => write(folder, &format!("{name}.cpp"), CPP)?,
        Language::Rust => rust(folder, name)?,
    }
    if !matches!(new.language, Language::Rust) {
        write(folder, HEADER_NAME, HEADER)?;
    }
    fs::write(
        folder.join("test.f64"),
        VALUES.map(f64::to_le_bytes).concat(),
    )?;
    let at = folder.display();
    let text = format!(
        "{at} made. Next:\n  tidemill kernel build {at}\n  tidemill kernel test {at}/{name}.so {at}/test.f64 --law\n  \
         tidemill kernel add {at}/{name}.so"
    );
    context
        .output
        .show(&Said::new(text, json!({ "folder": folder })))?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent)?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// With manifests, so that editors and cargo know it too.
fn rust(folder: &Path, name: &str) -> anyhow::Result<()> {
    let manifest = format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[lib]\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\ntidemill-kernel-api = {{ path = \"tidemill-kernel-api\" }}\n\n[workspace]\n"
    );
    write(folder, "Cargo.toml", &manifest)?;
    write(folder, "src/lib.rs", RUST)?;
    let api = "[package]\nname = \"tidemill-kernel-api\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[lib]\n\
               path = \"lib.rs\"\n";
    write(folder, "tidemill-kernel-api/Cargo.toml", api)?;
    for (file, text) in API {
        write(folder, &format!("tidemill-kernel-api/{file}"), text)?;
    }
    Ok(())
}
