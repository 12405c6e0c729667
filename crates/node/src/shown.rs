//! Folders of the host that a node shows to kernels on request. The administrator allows some folders. Folders of the array and of the
//! system are never shown, also not as the target of a link.

use crate::config::Config;
use std::path::{Path, PathBuf};
use tidemill_client::Endpoint;
use tidemill_kernel::SYSTEM_PATHS;

/// Folders that are never shown, with all folders below and above them: secrets, devices, and sockets of the host.
const NEVER: [&str; 7] = ["/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys"];

/// Rules for the folders; see the module.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Folders as the administrator wrote them. Their targets may be created later.
    allowed: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
}

impl Shown {
    /// Returns the rules from the node's configuration.
    #[must_use]
    pub(crate) fn new(config: &Config) -> Self {
        let mut hidden: Vec<PathBuf> = NEVER.iter().map(PathBuf::from).collect();
        hidden.push(config.folder.clone());
        hidden.extend(config.hidden.iter().cloned());
        if let Endpoint::Unix(socket) = &config.server {
            hidden.extend(socket.parent().map(Path::to_owned));
        }
        Self {
            allowed: config.kernels_folders.clone(),
            hidden,
        }
    }

    /// Returns the real path of a requested folder, if it may be shown. Paths outside of the allowed folders are not accessed.
    #[must_use]
    pub(crate) fn find(&self, asked: &str) -> Option<PathBuf> {
        let system = SYSTEM_PATHS.iter().map(Path::new);
        let mut allowed = self.allowed.iter().map(PathBuf::as_path).chain(system);
        let asked = Path::new(asked);
        let real = |allowed: &Path| {
            let found = asked
                .starts_with(allowed)
                .then(|| asked.canonicalize().ok());
            let within = allowed.canonicalize().ok()?;
            found.flatten().filter(|found| found.starts_with(within))
        };
        let found = allowed.find_map(real)?;
        (found.is_dir() && !self.hides(&found)).then_some(found)
    }

    /// Returns a folder that all kernels may see by configuration. Logs a warning if it can't be shown.
    #[must_use]
    pub(crate) fn own(&self, folder: &Path) -> Option<PathBuf> {
        let found = folder.canonicalize().ok();
        let found = found.filter(|found| found.is_dir() && !self.hides(found));
        if found.is_none() {
            let folder = folder.display();
            tracing::warn!(%folder, "of kernels-path is no folder that can be shown to kernels");
        }
        found.map(|_| folder.to_owned())
    }

    /// Returns the names of the folders that tasks may request.
    pub(crate) fn offered(&self) -> impl Iterator<Item = String> {
        let names = self.allowed.iter().filter_map(|folder| folder.to_str());
        names.map(|name| format!("{}/", name.trim_end_matches('/')))
    }

    fn hides(&self, path: &Path) -> bool {
        self.hidden.iter().any(|hidden| {
            let real = hidden.canonicalize();
            let hidden = real.as_deref().unwrap_or(hidden);
            path.starts_with(hidden) || hidden.starts_with(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;
    use tidemill_core::id::NodeId;

    #[test]
    fn only_allowed_folders_are_shown_and_no_secrets() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let made = "sw/python/bin other home/me/array/node-0/objects home/me/array/server home/me/venv home/me/keys/k";
        for folder in made.split(' ') {
            create_dir_all(at(folder)).unwrap();
        }
        std::fs::write(at("sw/file"), "").unwrap();
        for (to, link) in [
            (&*at("other"), "sw/out"),
            ("/etc", "sw/etc"),
            ("../home/me/array", "sw/array"),
            (&at("sw/python"), "other/python"),
            ("sw", "software"),
            ("loop", "sw/loop"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        let server = Endpoint::Unix(at("home/me/array/server/server.sock").into());
        let mut config = Config::new(NodeId(0), at("home/me/array/node-0"), server);
        let none = Shown::new(&config);
        assert!(none.find(&at("sw")).is_none() && none.offered().next().is_none());
        assert_eq!(none.find("/usr/bin"), Some("/usr/bin".into()));
        config.hidden = vec![at("home/me/keys/k/token").into()];
        let allowed = ["software", "home", "later"].map(|one| at(one).into());
        config.kernels_folders = [&allowed[..], &["/etc".into(), "/proc".into()]].concat();
        let shown = Shown::new(&config);
        for good in ["software", "software/python/bin", "home/me/venv"] {
            assert!(shown.find(&at(good)).is_some(), "{good}");
        }
        let bad = "sw other other/python softwarf software/out software/etc software/array software/file \
                   software/nothing software/../other software/loop home home/me home/me/array home/me/keys/k \
                   home/me/array/node-0 home/me/array/node-0/objects home/me/array/server later .";
        for bad in bad.split_whitespace() {
            assert_eq!(shown.find(&at(bad)), None, "{bad}");
        }
        for bad in [
            "/",
            "/etc",
            "/etc/ssl",
            "/etc/ssl/certs",
            "/proc",
            "/proc/self/root",
            "",
            "sw",
        ] {
            assert_eq!(shown.find(bad), None, "{bad}");
        }
        create_dir_all(at("later")).unwrap();
        assert_eq!(shown.find(&at("later")), Some(root.join("later")));
        let offered = ["software", "home", "later"].map(|one| at(one) + "/");
        assert!(shown.offered().take(3).eq(offered));
        for (folder, good) in [("sw", true), ("nothing", false), ("home/me", false)] {
            assert_eq!(shown.own(at(folder).as_ref()).is_some(), good, "{folder}");
        }
    }
}
