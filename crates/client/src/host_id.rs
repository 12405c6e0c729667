//! Identity of this host: processes on the same host may open each other's object files directly.

/// Returns Linux's id of the current boot of the host; empty if it is unknown.
#[must_use]
pub fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Returns an id of this host: Linux's boot id and the host name, so that containers and network namespaces with host names of their own
/// count as separate hosts.
#[must_use]
pub fn id() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    format!("{}:{}", name, boot())
}
