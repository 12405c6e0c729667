//! Tests the kernel `reduce` with a file that the netCDF library wrote.

use super::*;

fn reduced(args: &[&str]) -> Result<serde_json::Value, String> {
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../format/tests/fixtures/cdf1.nc"
    );
    let mut out = Vec::new();
    let args = [&["to=json"], args].concat();
    let done = run_builtin("reduce", &strings(&args), &strings(&[fixture]), &mut out);
    done.map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&out).unwrap())
}

#[test]
fn reduce_kernel_joins_several_variables_to_one_result() {
    let args = ["op=histogram", "bins=0:100:4"];
    let both = reduced(&[&args[..], &["variable=f4_3t, f8_3t"]].concat()).unwrap();
    for (place, name) in ["f4_3t", "f8_3t"].into_iter().enumerate() {
        let variable = format!("variable={name}");
        let alone = reduced(&[&args[..], &[variable.as_str()]].concat()).unwrap();
        let of = &both["variables"][place];
        assert_eq!(
            (&of["variable"], &of["values"]),
            (&name.into(), &alone["values"])
        );
        let counts = alone["values"]["count"].as_array().unwrap();
        let all: u64 = counts.iter().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!((counts.len(), all), (6, 140));
    }
    // Bins between the extremes of each variable differ.
    let refused = reduced(&["op=histogram", "variable=f4_3t,f8_3t"]).unwrap_err();
    assert!(refused.contains("f4_3t is over bin (12)"), "{refused}");
    let refused = reduced(&["variable=f4_3t,"]).unwrap_err();
    assert!(refused.contains("no variable"), "{refused}");
    let refused = reduced(&["op=histogram", "variable=f4_3t", "bins=3:1:4"]).unwrap_err();
    assert!(refused.contains("no 4 bins"), "{refused}");
}
