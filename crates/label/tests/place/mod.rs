//! Test environment in which labels are published and carried out without a cluster.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use tidemill_label::{App, Intent, RegistrationOptions, agent};

/// Directory that contains a directory for files and a directory for logs.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("files")).unwrap();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(directory.path().join("logs"))
            .unwrap();
        Self { directory }
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.path().join("logs")
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    pub(crate) fn start_agent(&self) {
        let logs = self.logs();
        std::thread::spawn(move || agent::run(Some(&logs), false, |_| (), |_| ()));
    }

    pub(crate) fn app(&self, capacity: u64) -> App {
        self.app_for(capacity, Intent::None)
    }

    pub(crate) fn app_for(&self, capacity: u64, intent: Intent) -> App {
        let settings = RegistrationOptions {
            mount: Some(self.files()),
            directory: Some(self.logs()),
            capacity,
            intent,
            no_agent: true,
            ..RegistrationOptions::default()
        };
        App::register("test", &settings).unwrap()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.files().join(name)).unwrap()
    }
}
