#!/usr/bin/env python3
"""R peaks: sensitivity, precision and speed against neurokit2 and wfdb's XQRS, on synthetic signals with known beats.

  cargo build --release -p tidemill-compute --examples
  python3 -m venv bench/out/venv && bench/out/venv/bin/pip install neurokit2 wfdb opencv-python-headless
  bench/out/venv/bin/python bench/kernels/heartbeat.py [--seeds 4] [--first 100]

Each signal has 120 beats at 360 Hz, with a varying tempo, premature beats (half of them wide) and one kind of noise; `noise` is a
fraction of the usual R peak. A peak within 75 ms of a beat is that beat, unless another peak has it. Prints JSON lines: one for each
kind and height of noise, then one for all.
"""
import argparse
import json
import os
import warnings

import neurokit2
import numpy as np
import scipy.signal
import wfdb.processing

from driver import ROOT, Loops, timed

RATE = 360
KINDS = ["muscle", "white", "wander", "mains", "motion", "all"]
HEIGHTS = [0.1, 0.25, 0.4]


def heart(seed, kind, height, beats=120):
    """Returns a signal and the samples of its beats."""
    chance = np.random.default_rng(seed)
    tempo = 60 / chance.uniform(50, 110)
    intervals = tempo * (1 + 0.06 * chance.standard_normal(beats) + 0.04 * np.sin(0.6 * np.arange(beats)))
    for early in range(8, beats - 2, chance.integers(9, 17)):
        intervals[early] *= 0.65
        intervals[early + 1] *= 1.3
    times = np.cumsum(intervals) + 0.5
    time = np.arange(int((times[-1] + 1) * RATE)) / RATE
    signal = np.zeros(time.size)
    size = chance.uniform(0.7, 1.4)

    def wave(at, width):
        return np.exp(-0.5 * (at / width) ** 2)

    for beat, interval in zip(times, intervals):
        near = np.abs(time - beat) < 0.6
        at = time[near] - beat
        peak = size * (1 + 0.12 * chance.standard_normal())
        wide = interval < 0.8 * np.median(intervals) and chance.random() < 0.5
        width = 0.011 * (2.2 if wide else 1)
        signal[near] += peak * (wave(at, width) - 0.18 * wave(at + 2.4 * width, 0.9 * width)
                                - 0.28 * wave(at - 2.6 * width, 1.1 * width))
        signal[near] += (0 if wide else 0.14) * wave(at + 0.17, 0.022)
        signal[near] += 0.3 * chance.uniform(0.8, 1.2) * wave(at - 0.27 * np.sqrt(tempo), 0.045)
    if kind in ("muscle", "all"):
        band = scipy.signal.butter(2, [15 / (RATE / 2), 120 / (RATE / 2)], "band")
        signal += 1.6 * height * scipy.signal.lfilter(*band, chance.standard_normal(time.size))
    if kind == "white":
        signal += height * chance.standard_normal(time.size)
    if kind in ("wander", "all"):
        signal += 4 * height * np.sin(0.5 * np.pi * time)
        signal += 6 * height * np.cumsum(chance.standard_normal(time.size)) / np.sqrt(time.size)
    if kind in ("mains", "all"):
        signal += height * np.sin(100 * np.pi * time)
    if kind in ("motion", "all"):
        for _ in range(int(time[-1] / 8)):
            jerk = chance.standard_normal() * wave(time - chance.uniform(0, time[-1]), chance.uniform(0.05, 0.4))
            signal += 6 * height * jerk
    return signal, np.round(times * RATE).astype(int)


def score(found, beats):
    """Returns the numbers of found beats, of missed beats, and of peaks without a beat."""
    found = np.sort(np.asarray(found, dtype=int))
    taken = set()
    for beat in beats:
        first, last = np.searchsorted(found, [beat - 0.075 * RATE, beat + 0.075 * RATE])
        near = [index for index in range(first, last) if index not in taken]
        if near:
            taken.add(min(near, key=lambda index: abs(found[index] - beat)))
    return np.array([len(taken), len(beats) - len(taken), len(found) - len(taken)])


class Peer:
    def __init__(self, find):
        self.find, self.found = find, None

    def run(self, signal):
        self.found = self.find(signal)


def neurokit(signal):
    return neurokit2.ecg_peaks(neurokit2.ecg_clean(signal, RATE), RATE)[1]["ECG_R_Peaks"]


def xqrs(signal):
    return wfdb.processing.xqrs_detect(signal, RATE, verbose=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=100)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    directory = f"{ROOT}/bench/out/kernels"
    os.makedirs(directory, exist_ok=True)
    ours, peers = Loops(), {"neurokit2": Peer(neurokit), "wfdb xqrs": Peer(xqrs)}
    whole = {name: (np.zeros(3), []) for name in ["ours", *peers]}
    for kind in KINDS:
        for height in HEIGHTS:
            scores = {name: np.zeros(3) for name in whole}
            for seed in range(options.first, options.first + options.seeds):
                signal, beats = heart(seed, kind, height)
                signal.tofile(f"{directory}/ecg-{kind}-{height}-{seed}")
                whole["ours"][1].append(ours.run("heartbeat", f"{directory}/ecg-{kind}-{height}-{seed}", RATE))
                scores["ours"] += score(ours.found.split(), beats)
                for name, peer in peers.items():
                    whole[name][1].append(timed(peer.run, signal))
                    scores[name] += score(peer.found, beats)
            line = {"noise": kind, "height": height}
            for name, (hits, missed, wrong) in scores.items():
                line[name] = {"sensitivity": round(hits / (hits + missed), 4),
                              "precision": round(hits / max(hits + wrong, 1), 4)}
                whole[name][0][:] += (hits, missed, wrong)
            print(json.dumps(line), flush=True)
    line = {"noise": "all of these"}
    for name, ((hits, missed, wrong), seconds) in whole.items():
        cpu = sum(pair[1] for pair in seconds)
        line[name] = {"sensitivity": round(hits / (hits + missed), 4), "precision": round(hits / (hits + wrong), 4),
                      "s": round(sum(pair[0] for pair in seconds), 4), "cpu_s": round(cpu, 4)}
    for name in peers:
        line[f"cpu_ratio to {name}"] = round(line[name]["cpu_s"] / line["ours"]["cpu_s"], 1)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
