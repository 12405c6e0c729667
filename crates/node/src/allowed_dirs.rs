//! Directories of the host that a node shows to kernels on request. The administrator allows some directories. The node never shows
//! directories of the cluster and of the operating system, even as the target of a link.

use crate::config::NodeConfig;
use std::path::{Path, PathBuf};
use tidemill_client::Endpoint;
use tidemill_sandbox::SYSTEM_PATHS;

/// Directories that are never shown, with all directories below and above them: secrets, devices, and sockets of the host.
const NEVER: [&str; 7] = ["/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys"];

/// Rules that decide which directories of the host a node shows to kernels.
#[derive(Debug)]
pub(crate) struct AllowedDirs {
    /// Allowed directories as the administrator wrote them. The directories' targets may be created later.
    allowed: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
}

impl AllowedDirs {
    /// Returns the rules from the node's configuration.
    #[must_use]
    pub(crate) fn new(config: &NodeConfig) -> Self {
        let mut hidden: Vec<PathBuf> = NEVER.iter().map(PathBuf::from).collect();
        hidden.push(config.directory.clone());
        hidden.extend(config.hidden.iter().cloned());
        if let Endpoint::Unix(socket) = &config.server {
            hidden.extend(socket.parent().map(Path::to_owned));
        }
        Self {
            allowed: config.task_dirs.clone(),
            hidden,
        }
    }

    /// Returns the real path of a requested directory, if the node may show it. Does not access paths outside of the allowed directories.
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

    /// Returns the real path of a directory that all kernels may see by configuration. Logs a warning if the node can't show the directory.
    #[must_use]
    pub(crate) fn own(&self, directory: &Path) -> Option<PathBuf> {
        let found = directory.canonicalize().ok();
        let found = found.filter(|found| found.is_dir() && !self.hides(found));
        if found.is_none() {
            let directory = directory.display();
            tracing::warn!(%directory, "the directory of kernels-path can't be shown to kernels");
        }
        found.map(|_| directory.to_owned())
    }

    /// Returns the names of the directories that tasks may request.
    pub(crate) fn offered(&self) -> impl Iterator<Item = String> {
        let names = self
            .allowed
            .iter()
            .filter_map(|directory| directory.to_str());
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
    use tidemill_model::id::NodeId;

    #[test]
    fn allowed_dirs_show_only_allowed_directories_and_no_secrets() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let made = "sw/python/bin other home/me/cluster/node-0/objects home/me/cluster/server home/me/venv home/me/keys/k";
        for directory in made.split(' ') {
            create_dir_all(at(directory)).unwrap();
        }
        std::fs::write(at("sw/file"), "").unwrap();
        for (to, link) in [
            (&*at("other"), "sw/out"),
            ("/etc", "sw/etc"),
            ("../home/me/cluster", "sw/cluster"),
            (&at("sw/python"), "other/python"),
            ("sw", "software"),
            ("loop", "sw/loop"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        let server = Endpoint::Unix(at("home/me/cluster/server/server.sock").into());
        let mut config = NodeConfig::new(NodeId(0), at("home/me/cluster/node-0"), server);
        let none = AllowedDirs::new(&config);
        assert!(none.find(&at("sw")).is_none() && none.offered().next().is_none());
        assert_eq!(none.find("/usr/bin"), Some("/usr/bin".into()));
        config.hidden = vec![at("home/me/keys/k/token").into()];
        let allowed = ["software", "home", "later"].map(|one| at(one).into());
        config.task_dirs = [&allowed[..], &["/etc".into(), "/proc".into()]].concat();
        let shown = AllowedDirs::new(&config);
        for good in ["software", "software/python/bin", "home/me/venv"] {
            assert!(shown.find(&at(good)).is_some(), "{good}");
        }
        let bad = "sw other other/python softwarf software/out software/etc software/cluster software/file \
                   software/nothing software/../other software/loop home home/me home/me/cluster home/me/keys/k \
                   home/me/cluster/node-0 home/me/cluster/node-0/objects home/me/cluster/server later .";
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
        for (directory, good) in [("sw", true), ("nothing", false), ("home/me", false)] {
            assert_eq!(
                shown.own(at(directory).as_ref()).is_some(),
                good,
                "{directory}"
            );
        }
    }
}
