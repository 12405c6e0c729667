use super::*;

/// Returns a signal with a spike each second at 200 Hz, on a slow wave.
fn signal() -> Vec<f64> {
    (0..6000_u32)
        .map(|sample| {
            let time = f64::from(sample) / 200.0;
            let beat = time - time.floor() - 0.5;
            (-0.5 * (beat / 0.012).powi(2)).exp() + 0.3 * time.sin()
        })
        .collect()
}

#[test]
fn heartbeat_gives_indices_for_all_input_forms() {
    let signal = signal();
    let raw = [doubles(&signal)];
    let lines = run("heartbeat", &["rate=200"], &raw).unwrap();
    let wanted: Vec<u64> = (0..30).map(|beat| 100 + 200 * beat).collect();
    let indices: Vec<u64> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(indices, wanted);
    let text: String = signal.iter().map(|x| format!("{x}\n")).collect();
    assert_eq!(
        run(
            "heartbeat",
            &["rate=200", "dtype=text"],
            &[text.into_bytes()]
        )
        .unwrap(),
        lines
    );
    #[allow(clippy::cast_possible_truncation, reason = "small numbers")]
    let shorts = signal
        .iter()
        .flat_map(|x| ((1000.0 * x) as i16).to_be_bytes())
        .collect();
    let args = ["rate=200", "dtype=i16", "order=big", "missing=-32768"];
    assert_eq!(run("heartbeat", &args, &[shorts]).unwrap(), lines);
    let mut given = Vec::new();
    run_builtin(
        "heartbeat",
        &strings(&["rate=200", "out=f64"]),
        &files(&raw).names,
        &mut given,
    )
    .unwrap();
    assert_eq!(given.len(), 8 * 30);
    assert_eq!(given[8..16], 300_f64.to_le_bytes());
    for args in [vec![], vec!["rate=10"], vec!["rate=nan"], vec!["rate=fast"]] {
        let error = run("heartbeat", &args, &raw).unwrap_err().to_string();
        assert!(error.contains("rate"), "{error}");
    }
}
