//! Smallest program that runs a node: `node ID DIRECTORY SERVER`, with SERVER as `http://host:port`.
//!
//! The tests of this crate start and kill this program. Built-in kernels run in this program, too.

use tidemill_node::{NodeConfig, RunningNode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tidemill_sandbox::child::main_if_child();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [id, directory, server] = args.as_slice() else {
        return Err("usage: node ID DIRECTORY SERVER".into());
    };
    let mut config = NodeConfig::new(id.parse()?, directory, server.parse()?);
    config.cores = 2;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut node = RunningNode::start(config).await?;
        let error = node.failed().await;
        node.stop().await;
        Err(error.into())
    })
}
