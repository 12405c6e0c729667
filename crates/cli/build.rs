//! Passes the commit that the program is built from to the program.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    // An archive without history has no commit.
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=TIDEMILL_COMMIT={commit}");
    let mut features = ["wasm", "services", "nats", "azblob", "gcs", "hdfs"].to_vec();
    features.retain(|name| {
        let variable = format!("CARGO_FEATURE_{}", name.to_uppercase());
        std::env::var_os(variable).is_some()
    });
    let features = match features.is_empty() {
        true => "none".to_owned(),
        false => features.join(" "),
    };
    println!("cargo::rustc-env=TIDEMILL_FEATURES={features}");
    println!("cargo::rerun-if-changed=build.rs");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
