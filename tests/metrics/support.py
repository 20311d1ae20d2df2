"""Metrics as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from jobs_service import JobsService, metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: bytes) -> Samples:
    """Return the value of each sample by its name and labels; a sample that is there twice is an error."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


async def scraped(jobs: JobsService) -> Samples:
    """Return what a scrape finds."""
    return parsed(await metrics.text(jobs))


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return one sample."""
    return samples[name, tuple(sorted(labels.items()))]
