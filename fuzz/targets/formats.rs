//! Formats: contents of files and bodies of requests are parsed or refused.
#![no_main]

use flash::FlashLedger;
use libfuzzer_sys::fuzz_target;
use tidemill_wire::route::{self, ListedObject, SealBody, SealItem};

#[allow(dead_code, unused_imports, reason = "snapshots are only read and written here")]
#[path = "../../crates/node/src/flash/mod.rs"]
mod flash;

fuzz_target!(|bytes: &[u8]| {
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    match kind % 3 {
        0 => {
            if let Ok(ledger) = FlashLedger::restore(bytes) {
                // A ledger that was read survives being written and read again.
                let again = FlashLedger::restore(&ledger.save()).expect("its own snapshot");
                assert_eq!(again.save(), ledger.save());
            }
        }
        1 => {
            let _ = serde_json::from_slice::<Vec<SealItem>>(bytes);
            let _ = serde_json::from_slice::<SealBody>(bytes);
            let _ = serde_json::from_slice::<Vec<ListedObject>>(bytes);
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(bytes)
                && let Some(object) = route::parse_object(text)
            {
                assert!(route::object(object).eq_ignore_ascii_case(&format!("/objects/{text}")));
            }
        }
    }
});
