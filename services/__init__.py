"""The services, as adlro.services: adlro/services is a link to the folder services/ of a checkout."""
