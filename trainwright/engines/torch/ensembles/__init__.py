"""Several networks as one model: trained in one run, each as it would be alone, and asked together."""
