//! Limits for redirects of stores. A store may redirect to its data, but it may not make this host send requests to other servers.

use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};
use std::net::IpAddr;

/// Maximum number of redirects per request.
const REDIRECTS_MAX: usize = 10;

/// Returns the policy that follows a redirect only within one server.
pub(crate) fn redirects() -> Policy {
    Policy::custom(|attempt: Attempt<'_>| {
        let refused = match attempt.previous() {
            before if before.len() > REDIRECTS_MAX => {
                Some("the server redirects without end".to_owned())
            }
            before => before
                .last()
                .filter(|before| !is_within(before, attempt.url()))
                .map(|_| elsewhere(attempt.url())),
        };
        match refused {
            Some(why) => attempt.error(why),
            None => attempt.follow(),
        }
    })
}

fn elsewhere(to: &Url) -> String {
    let host = to.host_str().unwrap_or("nowhere");
    let port = to.port_or_known_default().unwrap_or(0);
    format!(
        "the server redirects to another server ({host}:{port}), which is not followed: give that address"
    )
}

/// Returns whether a redirect stays on a server: same host, and same port except for the change from HTTP to HTTPS.
fn is_within(from: &Url, to: &Url) -> bool {
    if from.host_str() != to.host_str() {
        return false;
    }
    let same_port = from.port_or_known_default() == to.port_or_known_default();
    match (from.scheme(), to.scheme()) {
        ("http", "https") => same_port || from.port().is_none() && to.port().is_none(),
        (before, now) => before == now && same_port,
    }
}

/// Distance of an address from this host. A server may not redirect to a server that is nearer than itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    World,
    Site,
    Link,
    Host,
}

fn near(address: IpAddr) -> Near {
    match address.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() || address.is_unspecified() => Near::Host,
        IpAddr::V4(address) if address.is_link_local() => Near::Link,
        IpAddr::V4(address) if address.is_private() => Near::Site,
        IpAddr::V6(address) if address.is_loopback() || address.is_unspecified() => Near::Host,
        IpAddr::V6(address) if address.is_unicast_link_local() => Near::Link,
        IpAddr::V6(address) if address.is_unique_local() => Near::Site,
        _ => Near::World,
    }
}

/// Returns whether a server at one of the addresses `server` may redirect to the addresses `named` for its data.
fn may_redirect(server: &[IpAddr], named: &[IpAddr]) -> bool {
    let nearest = server.iter().copied().map(near).max();
    let nearest = nearest.unwrap_or(Near::World);
    let good = |address: &IpAddr| match near(*address) {
        // Services at link-local addresses answer any client on the link, such as the service that returns a machine's identity.
        Near::Link => nearest == Near::Link,
        one => one <= nearest,
    };
    !named.is_empty() && named.iter().all(good)
}

async fn addresses(url: &Url) -> Vec<IpAddr> {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or(0);
    match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found.map(|found| found.ip()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Returns the URL of data to which a server redirects, if this host may request it; else the reason.
pub(crate) async fn allowed_url(server: &str, named: &str) -> Result<Url, String> {
    let (Ok(server), Ok(named)) = (Url::parse(server), Url::parse(named)) else {
        return Err("the server does not name the location of the data".into());
    };
    let safe = match (server.scheme(), named.scheme()) {
        ("http", "http" | "https") => true,
        (before, now) => before == now && now == "https",
    };
    if !safe {
        return Err(format!(
            "the server names {}:// as the location of the data, which is not allowed",
            named.scheme()
        ));
    }
    if server.host_str() == named.host_str() {
        return Ok(named);
    }
    let there = addresses(&named).await;
    let host = named.host_str().unwrap_or_default();
    if there.is_empty() {
        return Err(format!(
            "the server names {host} as the location of the data, and this host does not know {host}"
        ));
    }
    match may_redirect(&addresses(&server).await, &there) {
        true => Ok(named),
        false => Err(format!(
            "the server names {host} as the location of the data, which is nearer to this host than the server and is not allowed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn redirect_policy_allows_only_same_server() {
        for (from, to) in [
            ("http://a/x", "http://a/y"),
            ("http://a/x", "https://a/x"),
            ("http://a:80/x", "https://a/x"),
            ("https://a:8443/x", "https://a:8443/y"),
        ] {
            assert!(is_within(&url(from), &url(to)), "{from} {to}");
        }
        for (from, to) in [
            ("http://a/x", "http://b/x"),
            ("https://a/x", "http://a/x"),
            ("http://a/x", "http://127.0.0.1/x"),
            ("http://a:8000/x", "http://a:9000/x"),
            ("http://a:8000/x", "https://a/x"),
            ("http://127.0.0.2:1/", "http://127.0.0.1:1/"),
        ] {
            assert!(!is_within(&url(from), &url(to)), "{from} {to}");
        }
    }

    #[test]
    fn may_name_refuses_addresses_of_nearer_network() {
        let all = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let may = |server: &[&str], named: &[&str]| may_redirect(&all(server), &all(named));
        assert!(may(&["8.8.8.8"], &["9.9.9.9"]));
        assert!(may(&["10.0.0.1"], &["10.0.0.2", "8.8.8.8"]));
        assert!(may(&["127.0.0.1"], &["127.0.0.1", "10.0.0.2"]));
        assert!(!may(&["8.8.8.8"], &["10.0.0.2"]));
        assert!(!may(&["8.8.8.8"], &["9.9.9.9", "127.0.0.1"]));
        assert!(!may(&["10.0.0.1"], &["127.0.0.1"]));
        assert!(!may(&["10.0.0.1"], &["::ffff:127.0.0.1"]));
        assert!(!may(&["127.0.0.1"], &["169.254.169.254"]));
        assert!(!may(&["10.0.0.1"], &["0.0.0.0"]));
        assert!(!may(&["10.0.0.1"], &["::1"]));
        assert!(!may(&["8.8.8.8"], &["fe80::1"]));
        assert!(!may(&["8.8.8.8"], &["fd00::1"]));
    }

    #[tokio::test]
    async fn may_ask_refuses_loss_of_tls_and_nearer_server() {
        assert!(allowed_url("https://a:1", "http://a:2/x").await.is_err());
        assert!(allowed_url("https://a:1", "https://a:2/x").await.is_ok());
        assert!(
            allowed_url("http://a:1", "file:///etc/passwd")
                .await
                .is_err()
        );
        assert!(
            allowed_url("http://10.0.0.1:1", "http://127.0.0.1:2/x")
                .await
                .is_err()
        );
        assert!(
            allowed_url("http://127.0.0.1:1", "http://127.0.0.1:2/x")
                .await
                .is_ok()
        );
    }
}
